"""Fingerprints of keys in words, to compare by telephone: a word encodes 8 bits of a digest.

Eight words cover what a site and the coordinator know about each other. An attacker in between shows the site keys
before knowing the site's, and must then find others that give the coordinator the same words, in 2**64 attempts.
Sixteen words cover all keys together: a coordinator that shows each site another list chooses both lists, and finds
two that agree in 64 bits in 2**32 attempts.
"""

import hashlib

N_WORDS, N_WORDS_OF_ALL = 8, 16

WORDS = """
acorn actor agent alarm album alley amber anchor angle ankle apple apron arch arena armour arrow aunt autumn axle
bacon badge baker bamboo banjo barn basket beach beacon bean bear beetle bell bench berry bicycle birch bishop
blanket boat bonnet border bottle boulder bread brick bridge broom bucket buffalo butter button cabin cactus camel
candle canoe canvas carbon carpet carrot castle cattle cedar cellar chain chalk cheese cherry chess chimney circus
clay clock cloud clover coat cobalt coffee comet copper coral corn cotton cradle crane crow crystal cushion dagger
daisy dance desert diamond dolphin donkey dragon drum duck eagle earth echo elbow elm ember engine falcon feather
ferry fiddle finger flame flute forest fossil fountain fox frost galaxy garden garlic ginger giraffe glass glove
goat granite grape guitar hammer harbour harp hazel hedge helmet heron hill honey horse hunter iceberg ink iron
island ivory jacket jaguar jelly jigsaw jungle kayak kettle kitten ladder lagoon lantern lemon leopard lily lion
lizard lobster magnet maple marble meadow melon mirror monkey moon mountain museum mustard needle nest nickel north
oak oasis ocean olive onion orange orchid otter owl oyster paddle palace panda paper parrot peach pearl pebble
pencil pepper pigeon pilot pine planet plum pocket pony poppy potato puzzle quartz quilt rabbit radio raven ribbon
river robin rocket rose saddle salmon sand saturn scarf seal shell silver spider spoon squirrel star stone sugar
sunset swan table tiger timber tomato tower train tulip tunnel turtle valley vase velvet violin walnut water whale
willow window winter wizard wolf yacht yarn zebra
""".split()  # noqa: SIM905  a list would take a line a word


def fingerprint(data: bytes, n_words: int = N_WORDS) -> str:
    """Return the fingerprint of bytes, in words."""
    content = hashlib.sha256(b"silvan fingerprint\0" + data).digest()
    return " ".join(WORDS[byte] for byte in content[:n_words])

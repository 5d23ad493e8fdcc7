#!/bin/sh
# What silvan's image runs: any command of silvan, and four of its own.
#   coordinator ADDRESS SITE...  make the federation and its invitations if there is none yet; serve it
#   member SITE TABLE            join with the invitation if the site has not joined yet; serve it
#   example N                    write the tables of N example sites to /data: site-1.csv, site-2.csv ...
#   health                       whether all that was started still runs
set -eu
home=${SILVAN_HOME:-/silvan}

check_home() {
    if ! grep -q " $home " /proc/self/mounts || ! [ -w "$home" ]; then
        echo "silvan: no writable volume is mounted at $home, so keys and results would be lost with the container;" \
            "mount one: docker run --volume silvan:$home ..." >&2
        exit 2
    fi
}

case ${1-} in
health)
    found=1
    for file in "$home"/*/*.pid; do
        read -r pid started <"$file" || exit 1
        [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)" = "$started" ] || exit 1
        found=0
    done
    exit $found
    ;;
example)
    write='from silvan.cli.study_command import write_site_tables as write'
    exec python3 -c "from pathlib import Path; $write; write(Path('/data'), ${2:-3})"
    ;;
coordinator)
    check_home
    address=$2
    shift 2
    cd "$home"
    if ! [ -d coordinator ]; then
        options=
        for site; do options="$options --site $site"; done
        # shellcheck disable=SC2086  # names of sites have no spaces
        silvan study init coordinator --address "$address" $options
    fi
    cd coordinator
    for site; do
        if ! [ -e "$site.invite" ]; then
            silvan study invite "$site"
            cp "$site.invite" /invitations/
        fi
    done
    exec silvan study start --foreground
    ;;
member)
    check_home
    site=$2 table=$3
    if ! [ -d "$home/$site" ]; then
        until [ -e "/invitations/$site.invite" ]; do sleep 1; done
        silvan site join "/invitations/$site.invite" --table "$table" --folder "$home/$site"
    fi
    exec silvan site start "$home/$site" --foreground
    ;;
study | site)
    check_home
    exec silvan "$@"
    ;;
*)
    exec silvan "$@"
    ;;
esac

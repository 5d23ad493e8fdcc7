"""The algorithms of the publications, one folder a family; importing this package registers all that sites answer.

A site answers a message only if the module with the function that answers it was imported. All modules with such
functions are imported here, whichever algorithm is used.
"""

import silvan.algorithms.bofrf.choose
import silvan.algorithms.bofrf.clusters
import silvan.algorithms.bofrf.weigh
import silvan.algorithms.boosting.adaboost
import silvan.algorithms.boosting.boppid
import silvan.algorithms.boosting.multboost
import silvan.algorithms.evaluation.chosen_threshold
import silvan.algorithms.evaluation.evaluate
import silvan.algorithms.evaluation.noisy_tally
import silvan.algorithms.explanation.dependence
import silvan.algorithms.explanation.shuffled_columns
import silvan.algorithms.horizontal.adaptive_forest
import silvan.algorithms.horizontal.histogram_forest
import silvan.algorithms.horizontal.merged_forest
import silvan.algorithms.horizontal.own_share
import silvan.algorithms.horizontal.weigh_halves
import silvan.algorithms.label_holder.kept_predictions
import silvan.algorithms.label_holder.score_judging
import silvan.algorithms.linear.linear_fit
import silvan.algorithms.linear.linear_shares
import silvan.algorithms.private.noisy_levels
import silvan.algorithms.private.noisy_rows
import silvan.algorithms.private.tables_messages
import silvan.algorithms.results.kept_results
import silvan.algorithms.shared.admission
import silvan.algorithms.shared.class_counts
import silvan.algorithms.shared.recount
import silvan.algorithms.shared.shared_bins
import silvan.algorithms.vertical.columns
import silvan.algorithms.vertical.encoded
import silvan.algorithms.vertical.encoded_labels
import silvan.algorithms.vertical.encrypted_labels
import silvan.algorithms.vertical.encrypted_splits
import silvan.algorithms.vertical.encrypted_sums
import silvan.algorithms.vertical.party_shares
import silvan.algorithms.vertical.prediction
import silvan.privacy.gate.announce  # noqa: F401

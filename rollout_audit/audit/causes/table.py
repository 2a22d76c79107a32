"""The table of causes: how grave each is, what it takes to be named, what else it might be, what to do."""

from __future__ import annotations

from rollout_audit.audit.causes.alignment import misordered_rows, shift_by_one
from rollout_audit.audit.causes.model import Detector
from rollout_audit.audit.causes.noise import cancellation, heavy_tail, precision_noise
from rollout_audit.audit.causes.recording import (
    broken_rows,
    identical_columns,
    mask_too_wide,
    placeholder,
    synthetic_eos,
    top1_recorded,
)
from rollout_audit.audit.causes.sampling import temperature, truncated_sampling
from rollout_audit.audit.causes.storage import low_precision_storage
from rollout_audit.audit.causes.weights import mixed_versions, stale_weights

__all__ = ["DETECTORS"]

DETECTORS: tuple[Detector, ...] = (
    Detector("shift_by_one", "error", shift_by_one,
             "√π and √μ correlate by 0.8 or more at a lag other than 0, by less than 0.5 at lag 0 and 0.4 less, five "
             "standard errors above 0; over all pairs or in two rows (in one: ten standard errors), of a whole row or "
             "from some eighth on. Sound rows correlate by 0.9 and more at lag 0",
             "rows in another order or another column would not fit at any lag",
             "align one side by that lag: log-probs of position i belong to token i, not i + 1 (look for a double or a "
             "missing shift of labels)"),
    Detector("misordered_rows", "error", misordered_rows,
             "from some eighth of a row on its training log-probs correlate by less than 0.5 with the rollout's of the "
             "row and by 0.8 or more, 0.4 better, with those of another row of the step (six standard errors above 0, "
             "as hundreds are tried), which does not fit itself there either: two rows of one text are no exchange",
             "a shift would fit the row itself at another lag; broken rows would fit no row at all",
             "join the two sides by uid instead of by place; look for a sort, a shuffle or a gather between them"),
    Detector("placeholder", "error", placeholder,
             "faults of the data that stand for 'no log-prob': −1, 1, −9999, −1e9 and the like, 0.0 in runs where the "
             "other side is below −1; or −1 exactly on five tokens where the other side is half a nat off",
             "genuine zeros have the other side near 0 as well; tool or prompt tokens inside the mask stand in runs; "
             "padded rows in another order end in zeros",
             "mask these tokens out, or record their log-probs; --on-fault drop leaves such rows out and counts them"),
    Detector("top1_recorded", "error", top1_recorded,
             "rows in which, of three or more tokens that one side puts below e^−2, four fifths stand a whole nat "
             "higher and none low on the other side and log-odds of likely tokens agree within a half; in up to "
             "half of the rows, tokens that the other side finds likely must have been missed no oftener than "
             "twice what it says itself; eight such tokens in all. Sound rows have none",
             "truncated sampling moves d by one bounded amount; a temperature moves likely tokens as well; a shift "
             "scatters d to both sides",
             "take the log-prob of the sampled token from the per-position entries of the side that is named, not "
             "the first entry"),
    Detector("broken_rows", "error", broken_rows,
             "NaN, infinite, null or constant log-probs; rows that move by less than 0.1 on one side while the other"
             " is off; or up to half of the rows with |d| above 1.5 (and above ten medians) on 30% of their tokens, "
             "twice as much on eight and 10% where the other rows have a tenth of that share, or over one stretch of "
             "eight big ones (or 30% of the row) with one sign throughout. The worst row of the recorded runs has 18%",
             "a shift or an exchange would fit elsewhere; heavy tails are spread over all rows; of a stretch, "
             "log-probs alone cannot tell whether its tokens were sampled: where they are tool output or padding, "
             "the mask is too wide",
             "see which requests these were (speculative decoding, preemption, one bad replica); leave them out"),
    Detector("synthetic_eos", "warning", synthetic_eos,
             "last tokens with the trainer below −1 and a rollout log-prob of exactly 0.0, or above −0.01 in three "
             "rows; or |d| above 1.5 in three last tokens; either ten times as often as elsewhere",
             "a mask too wide at the end would show more than one token a row",
             "record the engine's own log-prob of the end token, or mask tokens that the framework appends"),
    Detector("mask_too_wide", "warning", mask_too_wide,
             "one stretch where three of five neighbours have |d| above 1.5, and under 10% of such tokens outside; "
             "with both signs, or one side near 0 throughout, or in more than half of the rows; in three rows and 5%"
             " of them that hold a third of such tokens, or of eight such tokens (or 30% of the row); or eight "
             "placeholders of 0.0 in runs; or 5% of the rows, three at least, off on one of the two tokens beside an "
             "edge of the mask (the start, gaps), ten times as often as elsewhere; or rows that end in constants "
             "where there is no mask",
             "broken rows are off all over, or over a stretch on one side alone, and that in some rows only; heavy "
             "tails are single tokens",
             "set the mask to 0 on prompt, tool output and padding: only sampled tokens have a rollout log-prob"),
    Detector("identical_columns", "warning", identical_columns,
             "d is exactly 0 on 100 tokens or more: the whole dump or whole steps",
             "two engines that only share their weights differ in the last digits",
             "map the two columns apart, or record the recompute: in bypass mode a KL of 0 is no evidence of health"),
    Detector("temperature", "warning", temperature,
             "85% of the tokens between 0.5 and 0.98 lean one way, unlikely ones the other, and a line through the "
             "log-odds explains half of their squared distance; or a line through log-odds or log-probs explains 90%"
             " of the variance of their distance; or 95% of them lean one way and 60% of those below e^−3 the other "
             "(three standard errors from a half); even noise leans 50%, and a line explains little",
             "truncated sampling moves sure and unsure tokens by the same amount; stale weights lean no way",
             "let both sides report log-probs at the sampling temperature (vLLM: processed_logprobs); dividing "
             "recorded log-probs by T does not repair them"),
    Detector("truncated_sampling", "warning", truncated_sampling,
             "70% of the log-ratios of unsure tokens have one sign (and four standard errors from a half), their "
             "medians one sign in every band of probability and one size, within a factor of two, below a half (any "
             "size where 95% have that sign); or the mean ratio is below 0.97, or above 1.03, by six standard errors "
             "while hardly anything lies on the other side of 0. The most biased sound dump has 63%, and mean ratios "
             "are 0.992 to 1.003",
             "a temperature leaves sure tokens where they are and turns the sign of unlikely ones",
             "renormalise on both sides or on neither (top-p, top-k, min-p), or sample without truncation"),
    Detector("mixed_versions", "warning", mixed_versions,
             "rows of a step, or tokens of a row where lists are recorded, are of several policy versions; a warning "
             "where rows of the oldest are 1.3 times further off than those of the newest by four standard errors and "
             "a health limit is passed",
             "with one version a step, a growing gap is staleness",
             "weight each row against the version that sampled it, or drain the queue before the weights change"),
    Detector("stale_weights", "warning", stale_weights,
             "typical rows are 1.3 times further off at the greatest recorded age than at the least (four standard "
             "errors); or 1.5 times between steps (six, as every split is tried); or, with nothing else found, even "
             "noise with k3 above 0.01",
             "precision noise does not grow with age; a faulty row or a shift would not be even",
             "refresh the sampler's weights more often, flush its prefix cache, check that the sync arrives"),
    Detector("low_precision_storage", "warning", low_precision_storage,
             "every value of a column (20 distinct ones at least) lies on the bfloat16 or float16 grid; a float32 does "
             "so by chance once in 65,536 or 8,192. float16 is info until its rounding makes a tenth of the mean |d|; "
             "either is where a health limit is passed of which rounding explains less than a tenth (of the mean d²)",
             "a low-precision engine that stores float32 leaves values between the grid points",
             "store log-probs as float32: bfloat16 keeps two to three digits, 0.016 at −4"),
    Detector("heavy_tail", "warning", heavy_tail,
             "the worst 1% of the tokens carry half of k3; normal noise gives them 9%, recorded engines 18% to 23%. "
             "Info while no health limit is passed",
             "precision noise is spread over all tokens; broken rows hold their bad tokens together",
             "see the worst tokens: expert routing that differs calls for routing replay, else cap or mask weights"),
    Detector("cancellation", "warning", cancellation,
             "k3 above 0.01 and |k1| below a tenth of it, as in the health rule",
             "errors of one sign show in k1 as well",
             "judge and reject by k3, not by k1 or a geometric ratio"),
    Detector("precision_noise", "info", precision_noise,
             "no other cause, no health limit passed, no heavy tail: what precisions and kernels leave",
             "a fault would lean one way, sit in some rows or tokens, or grow with age",
             "nothing to repair; a correction is cheap insurance"),
)  # fmt: skip

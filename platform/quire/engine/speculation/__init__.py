"""Speculative decoding: a drafter guesses the next tokens of a sequence, and one step of the model verifies them.

    Speculation.propose ─▶ drafts ─▶ Scheduler.plan: `with_drafts` adds them to chunks of sequences that sample
        ─▶ ModelRunner: logits after the last token and after each draft ─▶ `verify` ─▶ AcceptedDrafts
        ─▶ Scheduler.commit: appends the samples, frees the pages of rejected drafts ─▶ Speculation.observe

A drafter that reads hidden states gets those of computed tokens: `HiddenTap` ─▶ StepResult.hidden ─▶ its `observe`.

Drafters are plugins (`quire_drafters`). Before the drafter come the predictions that requests bring; without
--speculative-config only those are drafts.
"""

"""What filters leave of a distribution, computed the plain way in double precision."""

from __future__ import annotations

import torch


def kept_by_hand(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """Token → probability after the filters, for logits [vocab] without ties; the most likely first."""
    p = torch.softmax(logits.double() / temperature, -1).numpy()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if top_k:
        order = order[:top_k]
    total, nucleus, mass = sum(p[i] for i in order), [order[0]], p[order[0]]
    for i in order[1:]:
        if mass >= top_p * total:
            break
        nucleus.append(i)
        mass += p[i]
    kept = [i for i in nucleus if p[i] >= min_p * p[order[0]]]
    whole = sum(p[i] for i in kept)
    return {i: p[i] / whole for i in kept}

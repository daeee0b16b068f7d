"""Divides a model among ranks that compute it together (tensor parallelism, arXiv 1909.08053).

    rank      a rank's number, and how a count is divided
    parts     from the parts of a decoder to the parts that one rank has: fewer heads, narrower MLPs, fewer experts
    cuts      which rows and columns of each parameter of the whole model a rank's parameter holds
    modules   the cuts of each kind of module, and whose outputs are sums over the ranks
    files     the weights of a checkpoint, cut: each is read in part
    model     all of it for one model

A part without a rule here is computed whole by every rank, which is always correct. Attention is divided by heads, MLPs
by intermediate columns, experts by columns or by number, embedding table and head by vocabulary; a module adds up the
partial results of all ranks once, behind its last matrix.
"""

"""Ranks on several machines (nodes), or in processes that another program starts: how they find each other.

    rank 0: the engine process listens at --master-addr, --master-port ─▶ gather: a channel to each rank
                 ▲ JSON: I am rank 1 of 2, and listen there      │ JSON: where every rank listens
    rank 1: `platform serve --node-rank 1` ─▶ follow ─▶ a process for each rank ─▶ join

Of two ranks, the one with the higher number then connects to the other, for the sums; commands go over the connection
that has joined. With torchrun, the first rank's address is in torchrun's store, and all else is the same. If the first
rank is lost, the processes of the others end, and `follow` has new ones join again.

What can reach these ports can take a rank's place: they belong on a private network.
"""

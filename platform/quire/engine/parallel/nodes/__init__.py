"""Ranks on several machines (nodes), or in processes that another program starts: how they find each other.

    node 0: the engine process (rank 0) listens at --master-addr, --master-port:  Rendezvous
            ▲ JSON: start this rank, end it              ▲ pickled commands, as to every follower
    node 1: NodeAgent, which `platform serve --node-rank 1` runs ─▶ a process for each rank of the node

Every rank connects to the rendezvous, and tells where it listens for the ranks that it exchanges numbers with; of two
ranks, the one with the higher number connects to the other. Decoding what a rank sends to the leader runs no code. But
who reaches these ports can take a rank's place: they belong on a private network.
"""

"""Multi-rank training under torchrun, one file per technique.

environment.py      ranks, rendezvous, agreement between ranks, process exit
ddp.py              replicas: every rank has the full model (DDP); also the base class, which serves a single rank
fsdp2.py            every rank holds a shard of every tensor (FSDP2)
vocab_sharding.py   replicas of the layers; every rank holds V/N rows of the embedding and the head
failures.py         detecting a lost rank and reporting it once

The collectives themselves are in tiebeam.nn.collectives, distributed Muon in tiebeam.train.distributed_muon.
"""

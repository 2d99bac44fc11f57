"""The program ``nsqlookupd``, in one module: ``main``.

May import every other folder. The parts that are tested by themselves are in lower layers; this folder is tested as a
process.
"""

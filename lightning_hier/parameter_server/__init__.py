"""Parameter servers inside the ranks: the common parts of PSP-SGD and two-stage ASGD.

A rank has one :mod:`server loop <.server_loop>`, in a thread, and one
:mod:`request channel <.request_channel>` for each thread that sends requests. Both use the ports of
:mod:`.open_ports`.
"""

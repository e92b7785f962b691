"""Parameter servers inside the ranks: what PSP-SGD and two-stage ASGD share.

A rank has one :mod:`server loop <.server_loop>`, in a thread, and one
:mod:`request channel <.request_channel>` for each thread that sends requests. Both use the ports of
:mod:`.open_ports`.
"""

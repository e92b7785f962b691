"""What training costs over a network, before anybody trains: pure functions on numbers."""

"""Lightning programs that use the strategies. The package never imports them."""

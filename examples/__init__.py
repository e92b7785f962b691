"""Lightning programs that show the strategies at work; the package never imports them."""

"""PSP-SGD: servers that wait for some of the workers, workers that wait for some of the servers."""

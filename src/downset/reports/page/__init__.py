"""Reports as one self-contained HTML page: verdict first, then pictures with a table behind each."""

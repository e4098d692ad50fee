"""What is shipped to run Copath with: each file judged by the program that reads it."""

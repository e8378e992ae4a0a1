// Reads a file line by line, and gets the offset before each line, as `redis-check-aof` does.
#include <stdio.h>

int main(int argc, char **argv) {
    char line[100];
    long lines = 0, at = 0;
    FILE *f = fopen(argv[1], "r");
    if (!f) return 1;
    while ((at = ftell(f)) >= 0 && fgets(line, sizeof line, f)) lines++;
    printf("%ld lines, %ld bytes\n", lines, at);
    return fclose(f);
}

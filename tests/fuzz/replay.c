/* The main of a harness built without libFuzzer: runs every file of the folders given, each also cut
 * at several lengths and with single bytes changed, always in the same way. Fails where there is none. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 20, CUTS = 64, FLIPS = 256 };

/* Each input is a block of its own, so that a sanitizer sees a read past the end. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = calloc(1, size ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_all(uint8_t *data, size_t size)
{
    run(data, size);
    for (size_t i = 0; i < CUTS; i++)
        run(data, size * i / CUTS);
    for (size_t i = 0; i < 8 && i < size; i++)
        run(data, size - 1 - i);
    uint32_t seed = 1;
    for (int i = 0; i < FLIPS && size; i++) {
        seed = seed * 1664525 + 1013904223;
        size_t at = (seed >> 8) % size;
        uint8_t kept = data[at];
        static const uint8_t extremes[] = {0x00, 0xFF, 0x7F, 0x80};
        data[at] = i % 3 ? (uint8_t)(kept ^ 1u << (i & 7)) : extremes[i / 3 % 4];
        run(data, size);
        data[at] = kept;
    }
}

int main(int argc, char **argv)
{
    static uint8_t data[INPUT_MAX];
    int files = 0;
    run(data, 0);
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
            if (!file)
                continue;
            size_t size = fread(data, 1, sizeof data, file);
            fclose(file);
            run_all(data, size);
            files++;
        }
        if (dir)
            closedir(dir);
    }
    printf("%d files\n", files);
    return files ? 0 : 1;
}

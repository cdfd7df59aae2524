/* What the processor can do, and the masks that tests and `--cpu` restrict it to. */
#ifndef DS_BASE_CPU_H
#define DS_BASE_CPU_H

#include <stdbool.h>

enum {
    DS_CPU_AVX2 = 1,   /* AVX2, FMA, F16C, BMI2 */
    DS_CPU_AVX512 = 2, /* AVX-512 F, BW, VL, DQ and VNNI, with the system saving the registers */
    DS_CPU_NEON = 4,   /* AArch64 with dot product */
    DS_CPU_NONE = 8,   /* in a mask: no instruction set beyond the baseline (so that 0 can mean "any") */
};

unsigned ds_cpu_flags(void); /* of this machine; probed once */
/* name: "auto", "c", "avx2", "avx512", "neon" -> a mask to AND the flags with. False: unknown name. */
bool ds_cpu_mask(const char *name, unsigned *mask);
/* The name of the best ISA in flags: "c", "avx2", "avx512", "neon". */
const char *ds_cpu_name(unsigned flags);
/* Cores this process may run on, and its cgroup allows; at least 1. Threads that share a core count once: the
 * arithmetic here keeps a core's units busy with one thread. */
int ds_cpu_cores(void);
/* Of `allowed`, a byte a processor, those that are the first of their core; `root`: /sys/devices/system/cpu.
 * Where the system does not tell, a processor is a core. */
int ds_cpu_count_cores(const char *root, const unsigned char *allowed, int processors);

#endif

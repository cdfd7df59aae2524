/* UNROLL before a loop whose count is constant once inlined, so that arrays of vectors become registers. */
#ifndef DS_BACKEND_CPU_X86_UNROLL_H
#define DS_BACKEND_CPU_X86_UNROLL_H

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

#endif

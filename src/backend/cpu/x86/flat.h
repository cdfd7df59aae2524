/* INLINE and UNROLL lay a kernel out flat, so that its arrays of vectors become registers. Not where that
 * only costs the compiler minutes: instrumented, or with emulated instructions. */
#ifndef DS_BACKEND_CPU_X86_FLAT_H
#define DS_BACKEND_CPU_X86_FLAT_H

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if !defined(DS_SIMDE) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&                 \
    !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define DS_FLAT
#endif

#ifndef DS_FLAT
#define INLINE static inline
#define UNROLL
#elif defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif

/* exp(x) in fp32: the one sequence that ds_exp and the vector kernels share, step by step:
 *   x = min(x, MAX)                     so that the result stays finite
 *   t = fma(x, LOG2E, ROUND)            n = x / ln 2 to the nearest integer, in the low bits of t
 *   n = t - ROUND
 *   r = fma(n, -LN2_LO, fma(n, -LN2_HI, x))                 |r| <= 0.347
 *   p = fma(..fma(fma(C6, r, C5), r, C4).., r, C0)          C0 = C1 = 1: exp(0) is exactly 1
 *   result = p * 2^n, by adding n to the exponent; 0 where x < MIN; NaN where x is NaN
 * The error stays below 1 ulp: 0.06 for the polynomial (minimax in relative error on |r| <= ln 2 / 2),
 * the rest from rounding p. */
#ifndef DS_BACKEND_CPU_EXP_H
#define DS_BACKEND_CPU_EXP_H

#define DS_EXP_MIN -87.0f
#define DS_EXP_MAX 88.0f
#define DS_EXP_LOG2E 0x1.715476p+0f
#define DS_EXP_ROUND 0x1.8p+23f /* adding it leaves no bits behind the point */
#define DS_EXP_LN2_HI 0x1.62e43p-1f
#define DS_EXP_LN2_LO -0x1.05c61p-29f
#define DS_EXP_C6 0x1.6a23ccp-10f
#define DS_EXP_C5 0x1.123a2p-7f
#define DS_EXP_C4 0x1.5558f2p-5f
#define DS_EXP_C3 0x1.555492p-3f
#define DS_EXP_C2 0x1.fffffcp-2f

#endif

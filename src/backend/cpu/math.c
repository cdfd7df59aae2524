/* Scalar maths of the reference kernels. */
#include "backend/cpu/exp.h"
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

float ds_exp(float x)
{
    x = x > DS_EXP_MAX ? DS_EXP_MAX : x;
    float t = fmaf(x, DS_EXP_LOG2E, DS_EXP_ROUND), n = t - DS_EXP_ROUND;
    float r = fmaf(n, -DS_EXP_LN2_LO, fmaf(n, -DS_EXP_LN2_HI, x));
    float p = fmaf(DS_EXP_C6, r, DS_EXP_C5);
    p = fmaf(p, r, DS_EXP_C4);
    p = fmaf(p, r, DS_EXP_C3);
    p = fmaf(p, r, DS_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t shift, bits;
    memcpy(&shift, &t, sizeof shift);
    memcpy(&bits, &p, sizeof bits);
    bits += shift << 23; /* what ROUND put above n falls out at the top */
    memcpy(&p, &bits, sizeof p);
    return x < DS_EXP_MIN ? 0.0f : p;
}

float ds_tree16(const float *lanes)
{
    float r[8];
    for (int i = 0; i < 8; i++)
        r[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++)
        r[i] += r[i + 4];
    return (r[0] + r[2]) + (r[1] + r[3]);
}

/* Sums over the rounds of answers: speeds and acceptance as they are reported everywhere. */
#ifndef DS_BENCH_TALLY_H
#define DS_BENCH_TALLY_H

#include <dspark/request.h>

enum { DS_TALLY_POSITIONS = 64 };

typedef struct {
    int64_t answers, tokens, rounds, drafted, accepted;
    int64_t after_first; /* tokens that rounds made: all but each answer's first */
    double prefill_s, decode_s;
    int64_t tried[DS_TALLY_POSITIONS]; /* rounds that drafted a token at this position */
    int64_t taken[DS_TALLY_POSITIONS]; /* and whose token there was accepted */
} ds_tally;

void ds_tally_add(ds_tally *t, const ds_event *end);
double ds_tally_speed(const ds_tally *t);     /* tokens per second of decoding, first tokens left out */
double ds_tally_e2e_speed(const ds_tally *t); /* all tokens, prefill included */
double ds_tally_per_round(const ds_tally *t); /* 0 without rounds */

#endif

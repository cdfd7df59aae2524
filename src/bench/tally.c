#include "bench/tally.h"

void ds_tally_add(ds_tally *t, const ds_event *event)
{
    int n = event->end.n_token_ids;
    t->answers++;
    t->tokens += n;
    t->after_first += n > 0 ? n - 1 : 0;
    t->rounds += event->end.n_rounds;
    t->prefill_s += event->end.prefill_s;
    t->decode_s += event->end.decode_s;
    for (int i = 0; i < event->end.n_rounds; i++) {
        const ds_round_info *r = &event->end.rounds[i];
        t->drafted += r->drafted;
        t->accepted += r->accepted;
        for (int p = 0; p < r->drafted && p < DS_TALLY_POSITIONS; p++) {
            t->tried[p]++;
            t->taken[p] += r->accepted > p;
        }
    }
}

static double per(int64_t n, double of)
{
    return of > 0 ? (double)n / of : 0;
}

double ds_tally_speed(const ds_tally *t)
{
    return per(t->after_first, t->decode_s);
}

double ds_tally_e2e_speed(const ds_tally *t)
{
    return per(t->tokens, t->prefill_s + t->decode_s);
}

double ds_tally_per_round(const ds_tally *t)
{
    return per(t->after_first, (double)t->rounds);
}

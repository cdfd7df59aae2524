#include "backend/cpu/team.h"

/* A window ends when it is long enough to judge, or when so much was lost that there is no doubt. */
static const double WINDOW = 8e-3, ENOUGH = 2e-3;
/* The first pause is short, since a passing disturbance is the usual case. */
static const double FIRST_PAUSE = 10e-3, LAST_PAUSE = 1.0;
/* A team of n that loses more than 1/n of its time would be faster with one thread less, if its speed grew
 * with its size; where reading weights is the limit it grows by less. */
static const double TOLERATED = 0.6;

void ds_team_open(ds_team *t, int threads)
{
    *t = (ds_team){ .threads = threads, .active = threads };
    for (int i = 1; i < threads; i++)
        t->members[i].pause = FIRST_PAUSE;
}

static void new_window(ds_team *t)
{
    t->wall = t->lost = 0;
    for (int i = 1; i < t->threads; i++)
        t->members[i].late = 0;
}

bool ds_team_begin(ds_team *t, double now)
{
    if (t->active == t->threads)
        return false;
    bool any = false;
    for (int i = 1; i < t->threads && !any; i++) { /* one at a time: on a taken core each costs something */
        ds_member *m = &t->members[i];
        if (!m->out || now < m->until)
            continue;
        m->out = false;
        m->good = 0;
        t->active++;
        any = true;
    }
    if (any)
        new_window(t);
    return any;
}

void ds_team_late(ds_team *t, int worker, double seconds)
{
    t->members[worker].late += seconds;
}

/* The one that was waited for longest; if that is nobody, so that it was the caller who did not run, the
 * last: it gives up its core, and the system can move the caller there. */
static int worst(const ds_team *t)
{
    int found = 0;
    for (int i = 1; i < t->threads; i++)
        if (!t->members[i].out && (!found || t->members[i].late >= t->members[found].late))
            found = i;
    return found;
}

int ds_team_end(ds_team *t, double now, double wall, double lost)
{
    t->wall += wall;
    t->lost += lost;
    if (t->active < 2 || (t->wall < WINDOW && t->lost < ENOUGH))
        return 0;
    bool harmed = t->lost * t->active > TOLERATED * t->wall;
    int out = harmed ? worst(t) : 0;
    for (int i = 1; i < t->threads && !harmed; i++) {
        ds_member *m = &t->members[i];
        if (m->out)
            continue;
        m->good += t->wall;
        if (m->good > 4 * m->pause)
            m->pause = FIRST_PAUSE;
    }
    if (out) {
        ds_member *m = &t->members[out];
        m->out = true;
        m->until = now + m->pause;
        m->pause = m->pause * 2 < LAST_PAUSE ? m->pause * 2 : LAST_PAUSE;
        t->active--;
    }
    new_window(t);
    return out;
}

#include "text/detok.h"

#include <string.h>

enum { WHOLE, PARTIAL, BROKEN };

/* Looks at the character that starts at p[0 .. n): WHOLE, a PARTIAL one that more bytes may complete,
 * or BROKEN; *len is what to take: the character, or the longest start of one before the break. */
static int next_char(const uint8_t *p, size_t n, size_t *len)
{
    uint8_t lead = p[0], low = 0x80, high = 0xbf; /* range of the second byte */
    size_t need = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f; /* no surrogates */
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f; /* nothing above U+10FFFF */
    *len = 1;
    if (!need)
        return BROKEN;
    for (; *len < need; (*len)++) {
        if (*len == n)
            return PARTIAL;
        if (p[*len] < low || p[*len] > high)
            return BROKEN;
        low = 0x80;
        high = 0xbf;
    }
    return WHOLE;
}

void ds_detok_init(ds_detok *detok, const ds_tokenizer *tok, bool skip_special)
{
    *detok = (ds_detok){.tok = tok, .skip_special = skip_special};
}

static bool feed_bytes(ds_detok *detok, const uint8_t *p, size_t n, ds_buf *out)
{
    bool ok = true;
    size_t len;
    while (detok->held_len && n) { /* complete the held character byte by byte */
        detok->held[detok->held_len++] = *p;
        int state = next_char(detok->held, detok->held_len, &len);
        if (state == BROKEN) { /* this byte does not belong to it: it starts anew below */
            ok &= ds_buf_str(out, "\xef\xbf\xbd");
            detok->held_len = 0;
            break;
        }
        if (state == WHOLE) {
            ok &= ds_buf_add(out, detok->held, len);
            detok->held_len = 0;
        }
        p++;
        n--;
    }
    for (size_t plain = 0; n; plain = 0) {
        int state = WHOLE;
        while (plain < n && (state = next_char(p + plain, n - plain, &len)) == WHOLE)
            plain += len;
        ok &= ds_buf_add(out, p, plain);
        p += plain;
        n -= plain;
        if (state == PARTIAL && n) {
            memcpy(detok->held, p, n);
            detok->held_len = n;
            n = 0;
        } else if (state == BROKEN) {
            ok &= ds_buf_str(out, "\xef\xbf\xbd");
            p += len;
            n -= len;
        }
    }
    return ok;
}

bool ds_detok_feed(ds_detok *detok, const int32_t *ids, size_t n, ds_buf *out)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const uint8_t *bytes = ds_tokenizer_bytes(detok->tok, ids[i], &len);
        if (!detok->skip_special || !ds_tokenizer_is_special(detok->tok, ids[i]))
            ok &= feed_bytes(detok, bytes, len, out);
    }
    return ok;
}

bool ds_detok_end(ds_detok *detok, ds_buf *out)
{
    bool held = detok->held_len > 0;
    detok->held_len = 0;
    return !held || ds_buf_str(out, "\xef\xbf\xbd");
}

#include "formats/safetensors.h"

#include "formats_files.h"

/* bytes: of tensor data after the header. says NULL: accepted. */
static void test_headers(void **state)
{
    (void)state;
#define T(dtype, shape, from, to)                                                                            \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
    static const struct {
        const char *header;
        size_t bytes;
        const char *says;
    } cases[] = {
        {"{}", 0, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
        {"{\"a\":" T("F32", "[2]", "0", "8") "}", 8, NULL},
        {"{\"a\":" T("F32", "[]", "0", "4") "}", 4, NULL},
        {"{\"a\":" T("BF16", "[0,7]", "0", "0") "}", 0, NULL},
        {"{\"a\":" T("U8", "[1,2,1,2,3]", "2", "14") "}", 14, NULL},
        {"{\"a\":" T("F32", "[2]", "0", "8") "}", 7, "truncated"},
        {"{\"a\":" T("F32", "[2]", "0", "7") "}", 8, "its shape takes 8 bytes"},
        {"{\"a\":" T("F32", "[3]", "0", "8") "}", 8, "its shape takes 12 bytes"},
        {"{\"a\":" T("F32", "[2]", "8", "0") "}", 8, "lies at bytes 8 to 0"},
        {"{\"a\":" T("F32", "[2]", "-8", "0") "}", 8, "data_offsets"},
        {"{\"a\":" T("F32", "[2]", "9223372036854775800", "9223372036854775807") "}", 8, "lies at"},
        {"{\"a\":" T("F32", "[2]", "9223372036854775808", "9223372036854775816") "}", 8, "data_offsets"},
        {"{\"a\":" T("F32", "[2]", "0.0", "8") "}", 8, "data_offsets"},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "0", "0") "}", 8, "too large"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "0", "0") "}", 8, "too large"},
        {"{\"a\":" T("U8", "[1,1,1,4294967296,4294967296,0]", "0", "0") "}", 8, "too large"},
        {"{\"a\":" T("F32", "[-2]", "0", "8") "}", 8, "no size"},
        {"{\"a\":" T("F32", "[\"2\"]", "0", "8") "}", 8, "no size"},
        {"{\"a\":" T("F32", "2", "0", "8") "}", 8, "shape must be"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,2]", "0", "8") "}", 8, "shape must be"},
        {"{\"a\":" T("F7", "[2]", "0", "8") "}", 8, "dtype F7"},
        {"{\"a\":" T("Q4_0", "[32]", "0", "18") "}", 18, "dtype Q4_0"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape must be"},
        {"{\"a\":3}", 8, "no dtype"},
        {"{\"a\":" T("U8", "[1]", "0", "1") ",\"a\":" T("U8", "[1]", "0", "1") "}", 1, "duplicate"},
        {"[1]", 0, "not a JSON object"},
        {"{\"a\":", 0, "not valid JSON"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_buf file = {0};
        ds_error err = {0};
        ds_safetensors *st;
        put_safetensors(&file, cases[i].header, cases[i].bytes);
        ds_status status = ds_safetensors_parse(&st, (const uint8_t *)file.data, file.len, "x.st", &err);
        if (status != (cases[i].says ? DS_BAD_FILE : DS_OK) ||
            (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("%s: status %d, '%s'", cases[i].header, status, err.text);
        assert_int_equal(st != NULL, status == DS_OK);
        ds_safetensors_close(st);
        ds_buf_release(&file);
    }
}

static void test_contents(void **state)
{
    (void)state;
    ds_buf file = {0};
    put_safetensors(
        &file, "{\"b\":" T("BF16", "[2,3]", "4", "16") ",\"a\":" T("U8", "[1,2,1,2,1]", "0", "4") "}", 16);
    write_file("t.safetensors", file.data, file.len);
    ds_safetensors *st;
    assert_int_equal(ds_safetensors_open(&st, in_folder("t.safetensors"), NULL), DS_OK);
    assert_int_equal(st->count, 2);
    const ds_tensor *b = &st->tensors[0], *a = &st->tensors[1];
    assert_string_equal(b->name, "b");
    assert_int_equal(b->type, DS_BF16);
    assert_int_equal(b->rank, 2);
    assert_true(b->dims[0] == 2 && b->dims[1] == 3 && b->dims[2] == 1 && b->dims[3] == 1);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(b->data[0], 4);
    assert_int_equal(a->rank, 4); /* what is beyond four dimensions is folded */
    assert_true(a->dims[0] == 1 && a->dims[1] == 2 && a->dims[2] == 1 && a->dims[3] == 2);
    ds_safetensors_close(st);
    ds_buf_release(&file);
    ds_safetensors_close(NULL);
}

/* A file cut anywhere is refused, whatever is left of it; so is one whose header length lies. */
static void test_cuts(void **state)
{
    (void)state;
    ds_buf file = {0};
    ds_safetensors *st;
    put_safetensors(&file, "{\"a\":" T("F32", "[2]", "0", "8") "}", 8);
    for (size_t len = 0; len < file.len; len++) {
        uint8_t *cut = malloc(len ? len : 1); /* its own block, so that a read past the end shows */
        memcpy(cut, file.data, len);
        assert_int_equal(ds_safetensors_parse(&st, len ? cut : NULL, len, "cut", NULL), DS_BAD_FILE);
        assert_null(st);
        free(cut);
    }
    static const uint64_t lengths[] = {0, 1, 7, 1 << 20, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        memcpy(file.data, &lengths[i], 8);
        assert_int_equal(ds_safetensors_parse(&st, (const uint8_t *)file.data, file.len, "lie", NULL),
                         DS_BAD_FILE);
    }
    ds_buf_release(&file);
}

int main(void)
{
    make_folder();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_cuts),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_folder();
    return failed;
}

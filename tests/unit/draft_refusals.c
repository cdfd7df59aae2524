/* What is not run is refused with a sentence that names it; none of this needs a target. */
#include "draft/draft.h"

#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BODY                                                                                                 \
    "\"hidden_size\":64,\"vocab_size\":320,\"num_hidden_layers\":2,\"intermediate_size\":128,"               \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"block_size\":7,"                  \
    "\"mask_token_id\":0,"
#define QWEN3                                                                                                \
    "\"architectures\":[\"Qwen3DSparkModel\"],\"model_type\":\"qwen3\"," BODY "\"target_layer_ids\":[0,1,3]"

static const struct {
    const char *name, *config, *says;
} cases[] = {
    {"speculators", "\"speculators_model_type\":\"dspark\"", "vLLM speculators"},
    {"speculators by config", "\"speculators_config\":{\"algorithm\":\"dspark\"}", "vLLM speculators"},
    {"speculators of another algorithm", "\"speculators_config\":{\"algorithm\":\"eagle3\"}", "eagle3"},
    {"specforge", "\"model_type\":\"qwen3\",\"dflash_config\":{\"projector_type\":\"dspark\"}", "SpecForge"},
    {"liquid", "\"architectures\":[\"Lfm2DSparkDraftModel\"],\"dflash_config\":{\"target_layer_ids\":[0]}",
     "LiquidAI"},
    {"nvfp4", QWEN3 ",\"quantization_config\":{\"quant_method\":\"modelopt\"}", "NVFP4"},
    {"dflash", "\"architectures\":[\"DFlashDraftModel\"],\"model_type\":\"qwen3\",\"block_size\":8",
     "DFlash drafter"},
    {"dflash 2", "\"architectures\":[\"DFlash2DraftModel\"],\"block_size\":8", "DFlash 2"},
    {"dflash hybrid", "\"architectures\":[\"DFlashDraftModel\"],\"block_size\":8,\"markov_rank\":4",
     "Markov head"},
    {"eagle", "\"architectures\":[\"LlamaForCausalLMEagle3\"],\"model_type\":\"llama\"", "EAGLE"},
    {"medusa", "\"medusa_num_heads\":4", "Medusa"},
    {"embedded", "\"model_type\":\"deepseek_v4\",\"dspark_block\":7", "embedded DSpark drafter"},
    {"a target", "\"model_type\":\"qwen3\",\"hidden_size\":64", "is it a target model?"},
    {"unknown family", "\"model_type\":\"llama\"," BODY "\"target_layer_ids\":[0]", "model_type llama"},
    {"gemma4", "\"model_type\":\"gemma4_text\"," BODY "\"target_layer_ids\":[0]", "gemma4 body"},
    {"qwen3_5", "\"model_type\":\"qwen3_5\"," BODY "\"target_layer_ids\":[0]", "qwen3_5 body"},
    {"gated queries", QWEN3 ",\"enable_qwen35_gated_q_proj\":true", "gated queries"},
    {"causal", QWEN3 ",\"dflash_query_causal\":true", "causal block"},
    {"sinks", QWEN3 ",\"attention_sink_bias\":true", "attention sinks"},
    {"log-SNR", QWEN3 ",\"log_snr_conditioning\":true", "log-SNR"},
    {"yarn", QWEN3 ",\"rope_parameters\":{\"rope_type\":\"yarn\"}", "yarn"},
    {"markov type", QWEN3 ",\"markov_head_type\":\"conv\"", "type conv"},
    {"fields", "\"model_type\":\"qwen3\",\"block_size\":7",
     "lacks hidden_size, vocab_size, num_hidden_layers"},
    {"taps in disorder", "\"model_type\":\"qwen3\"," BODY "\"target_layer_ids\":[3,1]",
     "strictly increasing"},
    {"no slots", QWEN3 ",\"logits_start\":7", "drafts 0 tokens"},
    {"a key twice", QWEN3 ",\"num_attention_heads\":3", "duplicate"},
    {"empty vocabulary", QWEN3 ",\"draft_vocab_size\":0", "draft_vocab_size"},
    {"missing tensors", QWEN3, "missing fc.weight, hidden_norm.weight, norm.weight"},
    {"unexpected tensors", QWEN3, "...; unexpected x"},
    {"no d2t", QWEN3 ",\"draft_vocab_size\":160", "d2t is missing"},
    {"temperatures", QWEN3 ",\"confidence_temperatures\":[1,1]", "confidence_temperatures"},
};

static char folder[64];

static void write_text(const char *name, const void *data, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static void write_config(const char *config)
{
    ds_buf text = {0};
    ds_buf_fmt(&text, "{%s}", config);
    write_text("config.json", text.data, text.len);
    ds_buf_release(&text);
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_error err = {0};
        ds_checkpoint *ckpt = NULL;
        ds_drafter *drafter = NULL;
        write_config(cases[i].config);
        ds_status status = ds_checkpoint_open(&ckpt, folder, &err);
        if (!status)
            status = ds_drafter_open(&drafter, ckpt, NULL, NULL, &err);
        if (status != DS_BAD_FILE || drafter || !strstr(err.text, cases[i].says))
            fail_msg("%s: status %d, \"%s\" does not say \"%s\"", cases[i].name, status, err.text,
                     cases[i].says);
        ds_checkpoint_close(ckpt);
    }
}

static void test_options(void **state)
{
    (void)state;
    ds_drafter_opts opts;
    ds_drafter *drafter;
    ds_error err;
    ds_drafter_defaults(&opts);
    assert_int_equal(opts.bits, 4);
    assert_int_equal(opts.window, 4096);
    opts.bits = 3;
    assert_int_equal(ds_drafter_open(&drafter, NULL, NULL, &opts, &err), DS_INVALID);
    assert_null(drafter);
    opts.bits = 8;
    opts.window = -1;
    assert_int_equal(ds_drafter_open(&drafter, NULL, NULL, &opts, &err), DS_INVALID);
}

static int make_folder(void **state)
{
    (void)state;
    static const char tensor[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}} ";
    uint64_t len = sizeof tensor - 1;
    char file[128];
    strcpy(folder, "/tmp/ds_draft_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    memcpy(file, &len, 8);
    memcpy(file + 8, tensor, len);
    memset(file + 8 + len, 0, 8);
    write_text("model.safetensors", file, 16 + len);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "config.json" : "model.safetensors");
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

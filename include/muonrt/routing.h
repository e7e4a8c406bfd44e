/**
 * @file muonrt/routing.h
 * Functions that derive the role of a parameter (Muon or AdamW) from its name.
 *
 * The optimizer itself interprets names only for QK-clip (`kind` and `layer` in muonrt/param.h).
 * Use these functions to set `role`, `view` and `qk_clip` according to the naming conventions of
 * PyTorch models, or set these fields yourself.
 */
#ifndef MUONRT_ROUTING_H
#define MUONRT_ROUTING_H

#include "muonrt/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Keys that extend the rules of muonrt_routing_resolve(). Call muonrt_routing_init() before you set
 * fields.
 *
 * A key matches a parameter if the parameter's normalized name contains the words of the key
 * consecutively. For example, "side_net" matches "layers.0.sideNet2.weight", but not
 * "inside_net.weight". See muonrt_routing_resolve() for the definition of a word, and
 * muonrt_name_normalize() for normalized names. Keys must not be empty.
 */
typedef struct muonrt_routing {
  /** Size of the struct in bytes; set by muonrt_routing_init(). */
  uint32_t struct_size;

  /** Number of `adamw_keys`. Default: 0. */
  int32_t n_adamw_keys;

  /** Keys of parameters that AdamW updates. Default: NULL, which means none. */
  const char* const* adamw_keys;

  /**
   * Keys of stacks of matrices: parameters with the three dimensions stack x rows x columns.
   * Default: NULL, which means none.
   */
  const char* const* expert_keys;

  /** Number of `expert_keys`. Default: 0. */
  int32_t n_expert_keys;

  /** Reserved; 0. */
  int32_t reserved;
} muonrt_routing_t;

/**
 * Sets every field of `routing` to its default.
 *
 * Call it through the macro muonrt_routing_init(), which passes the size. muonrt/base.h explains
 * how programs and libraries of different versions work together.
 *
 * Threads: any.
 *
 * @param[out] routing  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_routing_init_sized(muonrt_routing_t* routing, uint32_t size);
#define muonrt_routing_init(routing) muonrt_routing_init_sized((routing), sizeof(muonrt_routing_t))

/**
 * Chooses the role and the view of a parameter by its name and number of dimensions.
 *
 * Example: "model.layers.0.mlp.down_proj.weight" is a matrix for Muon, "lm_head.weight" is for
 * AdamW, and "model.layers.0.mlp.experts.down_proj" with three dimensions is a stack for Muon.
 *
 * The rules match only whole words of the name. A word ends at `.`, `/`, `_` and any other
 * character that is neither a letter nor a digit, and before a capital letter in camelCase. Digits
 * at the end of a word are ignored. The last words in the name of the parameter's module matter
 * most: "embed_tokens" is an embedding, but "embed_proj" is a projection. PEFT adapters have the
 * role of the module that they adapt. The first rule that applies decides:
 *   1. The parameter has fewer than two dimensions, or an AdamW key matches: MUONRT_ROLE_ADAMW,
 *      MUONRT_VIEW_NONE.
 *   2. The name denotes one of the following: an embedding ("wte", "embed_tokens",
 *      "patch_embed.proj", "shared"); an output head ("lm_head", "classifier", "score",
 *      "to_logits", "predictions.decoder"); a norm; a bias, gain or other vector ("A_log",
 *      "relative_attention_bias"); learned tokens, positions or another table; or a depthwise
 *      convolution ("dwconv", "conv1d"). The result is MUONRT_ROLE_ADAMW, MUONRT_VIEW_NONE. The
 *      names "output", "out", "proj_out" and "output_layer" are output heads only outside numbered
 *      layers and attention modules.
 *   3. The parameter has two dimensions: MUONRT_ROLE_MUON, MUONRT_VIEW_NONE. This rule also applies
 *      to the routers of experts.
 *   4. The parameter has three dimensions, and either its name contains "expert", "experts" or
 *      "moe", or an expert key matches: MUONRT_ROLE_MUON, MUONRT_VIEW_STACK.
 *   5. The name denotes a convolution, or the parameter is a `weight` or `kernel` with four or more
 *      dimensions: MUONRT_ROLE_MUON, MUONRT_VIEW_FLATTEN.
 *   6. Otherwise the function returns an error. Add an expert key or an AdamW key, or choose the
 *      role and the view of this parameter yourself.
 *
 * The function does not receive the sizes of dimensions, so it cannot detect every tensor that is
 * not a matrix. Use AdamW for tensors in which at most one dimension is greater than 1, and for
 * kernels of depthwise convolutions, whose dimension 1 has size 1.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] role     The role; unchanged on error.
 * @param[out] view     The view; unchanged on error.
 * @param[in]  routing  The keys; NULL for none.
 * @param[in]  name     The parameter's name; the function normalizes it.
 * @param[in]  ndim     Number of dimensions of the global tensor, >= 0.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is NULL or out of range, a key is NULL or empty,
 *     or no rule applies;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_routing_resolve(enum muonrt_role* role, enum muonrt_view* view,
                                                  const muonrt_routing_t* routing, const char* name,
                                                  int32_t ndim);

/**
 * Explains the choice of muonrt_routing_resolve(), for example "output head ('lm_head')".
 *
 * Threads: any. Collective: no.
 *
 * @param[out] buffer    Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Size of `buffer` in bytes, >= 0.
 * @param[out] needed    Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  routing   The keys; NULL for none.
 * @param[in]  name      The parameter's name; the function normalizes it.
 * @param[in]  ndim      Number of dimensions of the global tensor, >= 0.
 *
 * @return The statuses of muonrt_routing_resolve(). MUONRT_ERROR_INVALID_ARGUMENT is also returned
 *         if `capacity` is below 0, or if `buffer` is NULL and `capacity` is not 0.
 */
MUONRT_API muonrt_status_t muonrt_routing_explain(char* buffer, int64_t capacity, int64_t* needed,
                                                  const muonrt_routing_t* routing, const char* name,
                                                  int32_t ndim);

/**
 * Removes the parts that wrapper modules have added to a parameter's name.
 *
 * The parts of a name are separated by dots. The function removes the parts "_fsdp_wrapped_module",
 * "_checkpoint_wrapped_module", "_orig_mod", "_flat_param" and "_module", and a "module" at the
 * beginning of the name. Example: "module.layers.0._orig_mod.wq.weight" becomes
 * "layers.0.wq.weight".
 *
 * Threads: any. Collective: no.
 *
 * @param[out] buffer    Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Size of `buffer` in bytes, >= 0.
 * @param[out] needed    Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  name      The name.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `name` is NULL, `capacity` is below 0, or `buffer` is NULL and
 *     `capacity` is not 0;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_name_normalize(char* buffer, int64_t capacity, int64_t* needed,
                                                 const char* name);

/**
 * Determines from the name of a weight whether it is an attention projection to which QK-clip can
 * apply, and in which layer.
 *
 * The function normalizes the name and compares its second-to-last part with these names:
 *   - "wq", "q_proj": MUONRT_QK_QUERY;
 *   - "wk", "k_proj": MUONRT_QK_KEY;
 *   - "wq_b", "q_b_proj": MUONRT_QK_MLA_QUERY;
 *   - "wkv_b", "kv_b_proj": MUONRT_QK_MLA_KEY_VALUE;
 *   - "linear_qkv", "query_key_value", "wqkv": MUONRT_QK_QKV, as in Megatron, GPT-NeoX and
 *     InternLM2;
 *   - "c_attn", "qkv_proj", "qkv", "Wqkv": MUONRT_QK_QKV_BLOCKS, as in GPT-2, Phi-3, timm and MPT;
 *   - others: MUONRT_QK_NONE.
 *
 * A few models use a name of one fused kind for a weight whose rows have the order of the other
 * fused kind, for example "query_key_value" in ChatGLM and "wqkv" in gpt-fast. For these models,
 * set `kind` of muonrt_qk_clip_t yourself.
 *
 * Example: "layers.3.attention.wq.weight" is MUONRT_QK_QUERY of layer 3.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] kind   The kind of projection.
 * @param[out] layer  The last part of the name that is a number; -1 if no part is a number, or if
 *                    `kind` is MUONRT_QK_NONE.
 * @param[in]  name   The parameter's name.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_qk_layer_parse(enum muonrt_qk_kind* kind, int64_t* layer,
                                                 const char* name);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_ROUTING_H */

/* muonrt/routing.h - helpers from names to roles. Nothing else in muonrt looks into a name. */
#ifndef MUONRT_ROUTING_H
#define MUONRT_ROUTING_H

#include "muonrt/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which parameters get Muon. A key matches where it occurs in the normalized name. Fill with
 * muonrt_routing_init first, which sets the default AdamW keys (embed, lm_head, output.weight,
 * norm, wte, wpe, e_score_correction_bias) and no expert key. */
typedef struct muonrt_routing {
  uint32_t struct_size;
  int32_t n_adamw_keys;
  const char* const* adamw_keys;
  const char* const* expert_keys; /* 3-D parameters experts x rows x cols */
  int32_t n_expert_keys;
  int32_t reserved;
} muonrt_routing_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_routing_init_sized(muonrt_routing_t* routing, uint32_t size);
#define muonrt_routing_init(routing) muonrt_routing_init_sized((routing), sizeof(muonrt_routing_t))

/* *role <- MUONRT_ROLE_ADAMW below two dimensions and where an AdamW key matches, else
 * MUONRT_ROLE_MUON; *view <- MUONRT_VIEW_STACK for three dimensions that an expert key matches,
 * else MUONRT_VIEW_NONE. `routing` NULL: the defaults. Errors: INVALID_ARGUMENT for three or more
 * dimensions that no key declares. Threads: any. */
MUONRT_API muonrt_status_t muonrt_routing_resolve(muonrt_role_t* role, muonrt_view_t* view,
                                                  const muonrt_routing_t* routing, const char* name,
                                                  int32_t ndim);

/* The name without the parts that wrappers put into it: _fsdp_wrapped_module,
 * _checkpoint_wrapped_module, _orig_mod, _flat_param, _module, and a leading module.
 * Buffers as in muonrt_get_build_info. Threads: any. */
MUONRT_API muonrt_status_t muonrt_name_normalize(const char* name, char* buffer, int64_t capacity,
                                                 int64_t* needed);

/* *kind, *layer <- by the part of the normalized name before the last, and the last part that is a
 * number ("layers.3.attention.wq.weight": QUERY, 3); NONE and -1 for other names; -1 where there is
 * no number. Errors: INVALID_ARGUMENT for a null pointer. Threads: any. */
MUONRT_API muonrt_status_t muonrt_qk_layer_parse(muonrt_qk_kind_t* kind, int64_t* layer,
                                                 const char* name);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_ROUTING_H */

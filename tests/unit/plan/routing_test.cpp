#include "optimizer/routing.hpp"

#include <catch2/catch.hpp>

#include "muonrt/muonrt.h"

using namespace muonrt;
using Catch::Contains;

TEST_CASE("routing: normalize_name removes only the wrappers", "[unit][routing]") {
  CHECK(normalize_name("layers.3.attention.wq.weight") == "layers.3.attention.wq.weight");
  CHECK(normalize_name("_orig_mod.layers.0._checkpoint_wrapped_module.w") == "layers.0.w");
  CHECK(normalize_name("module._fsdp_wrapped_module.layers.1.w") == "layers.1.w");
  CHECK(normalize_name("module.module.w") == "w");
  CHECK(normalize_name("layers.module.w") == "layers.module.w");
  CHECK(normalize_name("my_orig_mod.w") == "my_orig_mod.w");
  CHECK(normalize_name("w") == "w");
  CHECK(normalize_name("") == "");
}

TEST_CASE("routing: QK kind and layer from the name", "[unit][routing]") {
  const auto parsed = [](const char* name) {
    const QkLayer q = parse_qk_layer(name);
    return std::pair(q.kind, q.layer);
  };
  CHECK(parsed("model.3.attn.wq.weight") == std::pair(QkKind::kQuery, int64_t{3}));
  CHECK(parsed("model.5.attn.wk.weight") == std::pair(QkKind::kKey, int64_t{5}));
  CHECK(parsed("model.layers.12.self_attn.q_proj.weight") ==
        std::pair(QkKind::kQuery, int64_t{12}));
  CHECK(parsed("model.layers.0.self_attn.k_proj.weight") == std::pair(QkKind::kKey, int64_t{0}));
  CHECK(parsed("layers.7.attention.wq_b.weight") == std::pair(QkKind::kMlaQuery, int64_t{7}));
  CHECK(parsed("layers.7.attention.wkv_b.weight") == std::pair(QkKind::kMlaKeyValue, int64_t{7}));
  // The layer is the last number in the name; a wrapper before ".weight" is ignored.
  CHECK(parsed("stage.1.layers.9.wq._orig_mod.weight") == std::pair(QkKind::kQuery, int64_t{9}));
  CHECK(parsed("attn.wq.weight") == std::pair(QkKind::kQuery, int64_t{-1}));
  for (const char* name : {"layers.1.attn.wv.weight", "layers.1.wq", "wq", "",
                           "layers.1.wkv_a.weight", "layers.1.attn.wq_norm.weight"}) {
    CHECK(parsed(name) == std::pair(QkKind::kNone, int64_t{-1}));
  }
  CHECK(parsed("layers.99999999999999999999.attn.wq.weight") ==
        std::pair(QkKind::kQuery, int64_t{-1}));
}

TEST_CASE("routing: role and view from the name and the number of dimensions", "[unit][routing]") {
  const char* const experts[] = {"experts"};
  muonrt_routing_t rules;
  muonrt_routing_init(&rules);
  rules.expert_keys = experts;
  rules.n_expert_keys = 1;
  enum muonrt_role role = MUONRT_ROLE_MUON;
  enum muonrt_view view = MUONRT_VIEW_NONE;
  const auto is = [&](const char* name, int32_t ndim, enum muonrt_role r, enum muonrt_view v) {
    INFO(name);
    REQUIRE(muonrt_routing_resolve(&role, &view, &rules, name, ndim) == MUONRT_OK);
    CHECK(role == r);
    CHECK(view == v);
  };
  is("layers.0.attention.wq.weight", 2, MUONRT_ROLE_MUON, MUONRT_VIEW_NONE);
  is("layers.0.attention.wq.bias", 1, MUONRT_ROLE_ADAMW, MUONRT_VIEW_NONE);
  is("tok_embeddings.weight", 2, MUONRT_ROLE_ADAMW, MUONRT_VIEW_NONE);
  is("model.embed_tokens.weight", 2, MUONRT_ROLE_ADAMW, MUONRT_VIEW_NONE);
  is("lm_head.weight", 2, MUONRT_ROLE_ADAMW, MUONRT_VIEW_NONE);
  is("layers.4.moe.experts.w1", 3, MUONRT_ROLE_MUON, MUONRT_VIEW_STACK);
  is("layers.4.moe.experts.7.w1.weight", 2, MUONRT_ROLE_MUON, MUONRT_VIEW_NONE);
  is("scale", 0, MUONRT_ROLE_ADAMW, MUONRT_VIEW_NONE);
  // If no rule applies, the call returns an error.
  CHECK(muonrt_routing_resolve(&role, &view, &rules, "conv.weight", 4) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("'conv.weight'") && Contains("4 dimensions"));
  CHECK(muonrt_routing_resolve(&role, &view, nullptr, "layers.4.moe.experts.w1", 3) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  const char* const all[] = {""};
  rules.adamw_keys = all;
  rules.n_adamw_keys = 1;
  CHECK(muonrt_routing_resolve(&role, &view, &rules, "w", 2) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("adamw_keys[0] is empty"));
}

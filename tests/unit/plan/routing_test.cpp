#include "optimizer/routing.hpp"

#include <catch2/catch.hpp>
#include <string>

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
  // The layer is the last number in the name. Wrapper modules in the name are ignored.
  CHECK(parsed("stage.1.layers.9.wq._orig_mod.weight") == std::pair(QkKind::kQuery, int64_t{9}));
  CHECK(parsed("attn.wq.weight") == std::pair(QkKind::kQuery, int64_t{-1}));
  for (const char* name : {"layers.1.attn.wv.weight", "layers.1.wq", "wq", "",
                           "layers.1.wkv_a.weight", "layers.1.attn.wq_norm.weight"}) {
    CHECK(parsed(name) == std::pair(QkKind::kNone, int64_t{-1}));
  }
  CHECK(parsed("layers.99999999999999999999.attn.wq.weight") ==
        std::pair(QkKind::kQuery, int64_t{-1}));
}

namespace {

struct Row {
  const char* name;
  int32_t ndim;
  const char* expected;  // role and view, or the reason for AdamW
};

/// Returns role, view and reason in the form of Row::expected, or the error message.
std::string found(const muonrt_routing_t* rules, const Row& row) {
  enum muonrt_role role = MUONRT_ROLE_MUON;
  enum muonrt_view view = MUONRT_VIEW_NONE;
  if (muonrt_routing_resolve(&role, &view, rules, row.name, row.ndim) != MUONRT_OK)
    return muonrt_get_last_error();
  if (role == MUONRT_ROLE_MUON) {
    const char* const views[] = {"muon", "muon stack", "muon flatten"};
    return views[view];
  }
  CHECK(view == MUONRT_VIEW_NONE);
  char reason[256];
  int64_t needed = 0;
  REQUIRE(muonrt_routing_explain(reason, sizeof reason, &needed, rules, row.name, row.ndim) ==
          MUONRT_OK);
  const std::string text = reason;
  CHECK(needed == std::ssize(text));
  return text.substr(0, text.find(" ('"));
}

}  // namespace

TEST_CASE("routing: whole words of the name decide about role and view", "[unit][routing]") {
  const Row rows[] = {
      {"layers.0.attention.wq.weight", 2, "muon"},
      {"layers.0.attention.wq.bias", 1, "fewer than two dimensions"},
      {"scale", 0, "fewer than two dimensions"},
      {"0.weight", 2, "muon"},
      {"w", 2, "muon"},
      // A word is ignored inside a longer word, or before the word that names the kind of
      // component.
      {"embed_proj.weight", 2, "muon"},
      {"norm_proj.weight", 2, "muon"},
      {"normalizer.linear.weight", 2, "muon"},
      {"layers.0.attn.head_proj.weight", 2, "muon"},
      {"encoder.embedding_hidden_mapping_in.weight", 2, "muon"},
      {"headless.weight", 2, "muon"},
      {"layers.0.overhead.weight", 2, "muon"},
      {"layers.0.norm1.linear.weight", 2, "muon"},
      {"pre_classifier.weight", 2, "muon"},
      {"layers.0.multi_head.weight", 2, "muon"},
      // Embeddings and tables.
      {"tok_embeddings.weight", 2, "embedding"},
      {"tokEmbeddings/embedding", 2, "embedding"},
      {"_orig_mod.module.transformer.wte.weight", 2, "embedding"},
      {"model.embed_tokens.weight", 2, "embedding"},
      {"gpt_neox.embed_in.weight", 2, "embedding"},
      {"shared.weight", 2, "embedding"},
      {"layers.0.shared.weight", 2, "muon"},
      {"patch_embed.proj.weight", 4, "patch embedding"},
      {"x_embedder.proj.weight", 4, "patch embedding"},
      {"t_embedder.mlp.0.weight", 2, "muon"},
      {"pos_embed", 3, "embedding"},
      {"query_tokens", 3, "table"},
      {"encoder.relative_position_table", 2, "table"},
      {"block.0.SelfAttention.relative_attention_bias.weight", 2, "vector"},
      {"experts.gate_up_proj_bias", 2, "vector"},
      {"mixer.A_log", 2, "vector"},
      {"layers.0.q_norm.weight", 2, "norm"},
      {"input_layernorm.weight", 2, "norm"},
      {"attn.rel_pos_w", 2, "table"},
      {"attention.emb_rel_k", 3, "table"},
      {"w_position_embeddings.weight", 2, "embedding"},
      // Heads.
      {"lm_head.weight", 2, "output head"},
      {"score.weight", 2, "output head"},
      {"classifier.6.weight", 2, "output head"},
      {"classifier.dense.weight", 2, "muon"},
      {"classifier.out_proj.weight", 2, "output head"},
      {"head.fc.weight", 2, "output head"},
      {"fc.weight", 2, "output head"},
      {"fc1.weight", 2, "muon"},
      {"attention.q_head.weight", 2, "muon"},
      {"mlp.router.classifier.weight", 2, "muon"},
      {"iou_prediction_head.proj_out.weight", 2, "output head"},
      {"to_logits.weight", 2, "output head"},
      {"model.output_layer.weight", 2, "output head"},
      {"output.weight", 2, "output head"},
      {"layers.0.attention.output.weight", 2, "muon"},
      {"proj_out.weight", 2, "output head"},
      {"transformer_blocks.0.proj_out.weight", 2, "muon"},
      {"layers_0/proj_out/kernel", 2, "muon"},
      {"cls.predictions.decoder.weight", 2, "output head"},
      {"decoder.layers.0.fc1.weight", 2, "muon"},
      {"final_layer.linear.weight", 2, "output head"},
      {"final_layer.adaLN_modulation.1.weight", 2, "muon"},
      {"model.layers.61.shared_head.head.weight", 2, "output head"},
      // Heads of value and reward models, and the last layers of other heads.
      {"v_head.summary.weight", 2, "output head"},
      {"pretrained_model.v_head.0.weight", 2, "output head"},
      {"ilql_heads.q_heads.0.2.weight", 2, "output head"},
      {"encoder.blocks.0.0.attention.v_head.weight", 2, "muon"},
      {"attention.v_head.weight", 2, "muon"},
      {"k_head.weight", 2, "muon"},
      {"reward.weight", 2, "output head"},
      {"regression_layer.weight", 2, "output head"},
      {"contact_head.regression.weight", 2, "output head"},
      {"multiple_choice_head.summary.weight", 2, "output head"},
      {"sequence_summary.summary.weight", 2, "muon"},
      {"lm_head_proj.weight", 2, "output head"},
      {"lm_head.dense.weight", 2, "muon"},
      {"pred_layer.proj.weight", 2, "output head"},
      {"readout.weight", 2, "output head"},
      {"readout_projects.0.0.weight", 2, "muon"},
      {"transformer.ff_out.weight", 2, "output head"},
      {"transformer.blocks.0.ff_out.weight", 2, "muon"},
      {"head.last_layer.weight_v", 2, "output head"},
      {"last_linear.weight", 2, "output head"},
      {"crit.out_layers.0.weight", 2, "output head"},
      {"objective.weight", 2, "output head"},
      {"class_predictor.weight", 2, "output head"},
      {"bbox_embed.0.layers.2.weight", 2, "output head"},
      {"generator.proj.weight", 2, "output head"},
      {"generator_predictions.dense.weight", 2, "muon"},
      {"ctc.ctc_lo.weight", 2, "output head"},
      {"predict_action.0.weight", 2, "output head"},
      {"value_net.weight", 2, "output head"},
      {"unembed.W_U", 2, "embedding"},
      {"embed.W_E", 2, "embedding"},
      {"text_projection.weight", 2, "muon"},
      {"pooler.dense.weight", 2, "muon"},
      // Adapters have the role of the parameter that they adapt.
      {"model.layers.0.q_proj.lora_A.default.weight", 2, "muon"},
      {"lm_head.lora_B.default.weight", 2, "output head"},
      {"embed_tokens.lora_embedding_A.default", 2, "embedding"},
      {"score.modules_to_save.default.weight", 2, "output head"},
      // Stacks and kernels.
      {"layers.4.moe.experts.w1", 3, "muon stack"},
      {"layers.4.moe.experts.7.w1.weight", 2, "muon"},
      {"layers.0.block_sparse_moe.input_linear.weight", 3, "muon stack"},
      {"layers.0.mlp.gate.weight", 2, "muon"},
      {"model.encoder.conv1.weight", 3, "muon flatten"},
      {"layer1.0.conv1.weight", 4, "muon flatten"},
      {"layer1.0.downsample.0.weight", 4, "muon flatten"},
      {"features.0.weight", 4, "muon flatten"},
      {"mixer.conv1d.weight", 3, "depthwise convolution"},
      {"stages.0.blocks.0.conv_dw.weight", 4, "depthwise convolution"},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    CHECK(found(nullptr, row) == row.expected);
  }
}

TEST_CASE("routing: without a rule the error names the keys, and the results do not change",
          "[unit][routing]") {
  enum muonrt_role role = MUONRT_ROLE_ADAMW;
  enum muonrt_view view = MUONRT_VIEW_STACK;
  for (const Row& row : {Row{"attn.q", 3, ""}, Row{"experts.w1", 4, ""}, Row{"bad", 5, ""}}) {
    INFO(row.name);
    CHECK(muonrt_routing_resolve(&role, &view, nullptr, row.name, row.ndim) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains(row.name) &&
                                            Contains(std::to_string(row.ndim) + " dimensions") &&
                                            Contains("expert_keys or adamw_keys"));
  }
  CHECK(role == MUONRT_ROLE_ADAMW);
  CHECK(view == MUONRT_VIEW_STACK);
}

TEST_CASE("routing: keys of the caller match whole words", "[unit][routing]") {
  muonrt_routing_t rules;
  muonrt_routing_init(&rules);
  CHECK(rules.n_adamw_keys == 0);
  const char* const experts[] = {"bank"};
  const char* const adamw[] = {"side_net", "up.weight"};
  rules.expert_keys = experts;
  rules.n_expert_keys = 1;
  rules.adamw_keys = adamw;
  rules.n_adamw_keys = 2;
  for (const Row& row : {Row{"layers.0.bank.w", 3, "muon stack"},
                         Row{"layers.0.sideNet2.weight", 2, "key of the caller"},
                         Row{"mlp.up.weight", 2, "key of the caller"},
                         Row{"inside_net.weight", 2, "muon"}, Row{"lm_head", 2, "output head"}}) {
    INFO(row.name);
    CHECK(found(&rules, row) == row.expected);
  }
  CHECK_THAT(found(&rules, {"layers.0.embankment", 3, ""}), Contains("3 dimensions"));
  const char* const all[] = {""};
  rules.adamw_keys = all;
  rules.n_adamw_keys = 1;
  CHECK_THAT(found(&rules, {"w", 2, ""}), Contains("adamw_keys[0] is empty"));
}

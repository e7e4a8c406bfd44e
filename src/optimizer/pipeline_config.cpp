#include "optimizer/pipeline_config.hpp"

#include "layout/blocks.hpp"

namespace muonrt {

namespace {

// Adds the blocks of an AdamW parameter that `rank` holds, with their positions in the whole
// tensor.
void add_blocks(AdamWParams& adamw, const Layout& layout, int32_t param, int rank) {
  const Layout matrix = layout.dims() > 2 ? layout.as_matrix() : layout;
  const int64_t width = matrix_shape(matrix).second;
  for (const Block& b : blocks_of(matrix, rank)) {
    ShardBlock block{};
    block.param = param;
    block.rows = b.rows;
    block.cols = b.cols;
    block.local_offset = b.local_offset;
    block.local_ld = b.local_ld;
    block.tensor_index = b.row * width + b.col;
    block.tensor_ld = width;
    adamw.blocks.push_back(block);
  }
}

}  // namespace

// If there are multiple replicas, only the first one contributes to the gradient norm, so each
// element is counted once.
PipelineConfig make_pipeline_config(const OptimizerSettings& settings, const ParamTables& tables,
                                    const State& state, const QkClipper& clipper, int rank) {
  PipelineConfig out;
  for (int32_t i = 0; i < std::ssize(settings.params); ++i) {
    const ParamSettings& p = settings.params[static_cast<size_t>(i)];
    const GroupSettings& group = group_of(settings, i);
    const ParamView& view = tables.params()[i];
    // If the momentum is not stored with the shard, the owners sum the gradients and update their
    // owner state.
    const bool local = state.find(i, StateKind::kMomentum)->location == StateLocation::kShard;
    if (view.grads() > 0) {
      out.held_params.push_back(i);
      if (grad_layout(p).replica_index(rank) == 0) out.clipping.norm_params.push_back(i);
      if (!local && group.update_every > 1) out.clipping.clip_only_params.push_back(i);
    }
    if (view.numel > 0 && view.form == WeightForm::kMaster) out.master_params.push_back(i);
    if (view.numel == 0 || group.role != Role::kAdamW || !local) continue;
    if (view.form == WeightForm::kStochastic) {
      out.adamw.by_block.push_back(i);
      add_blocks(out.adamw, p.layout, i, rank);
    } else {
      out.adamw.whole.push_back(i);
    }
  }
  out.clipping.clip_norm = settings.clip_norm;
  out.clipping.logits = clipper.logits();
  out.clipping.clipped = clipper.weights();
  out.clipping.tables = tables.gradient_tables();
  out.chunks.normuon = &state.normuon().states();
  out.chunks.callbacks = settings.exchange_callbacks;
  out.chunks.omit_inactive = settings.omit_inactive;
  out.table_copy = tables.copy();
  out.serial = settings.serial;
  out.health = settings.health_every > 0;
  out.poison = settings.poison;
  return out;
}

}  // namespace muonrt

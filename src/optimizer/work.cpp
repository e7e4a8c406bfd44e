#include "optimizer/work.hpp"

#include "layout/blocks.hpp"

namespace muonrt {

namespace {

// What a rank holds of an AdamW parameter, by rectangles that know their place in the tensor.
void add_pieces(AdamWork& work, const Layout& layout, int32_t param, int rank) {
  const Layout matrix = layout.dims() > 2 ? layout.as_matrix() : layout;
  const int64_t width = matrix_shape(matrix).second;
  for (const Block& b : blocks_of(matrix, rank)) {
    Piece piece{};
    piece.param = param;
    piece.rows = b.rows;
    piece.cols = b.cols;
    piece.local_offset = b.local_offset;
    piece.local_ld = b.local_ld;
    piece.tensor_index = b.row * width + b.col;
    piece.tensor_ld = width;
    work.pieces.push_back(piece);
  }
}

}  // namespace

// In the norm, elements of replicas are counted by the first of them, so that each counts once in
// the world.
StepWork make_work(const OptimizerSettings& settings, const Tables& tables, const State& state,
                   const QkClipper& clipper, int rank) {
  StepWork out;
  for (int32_t i = 0; i < std::ssize(settings.params); ++i) {
    const ParamSettings& p = settings.params[static_cast<size_t>(i)];
    const GroupSettings& group = group_of(settings, i);
    const ParamView& view = tables.params()[i];
    // Else owners sum the gradients, and update what they keep.
    const bool local = state.find(i, StateKind::kMomentum)->place == StatePlace::kLocal;
    if (view.grads() > 0) {
      out.held.push_back(i);
      if (grad_layout(p).replica_index(rank) == 0) out.clipping.counted.push_back(i);
      if (!local && group.update_every > 1) out.clipping.watched.push_back(i);
    }
    if (view.numel == 0 || group.role != Role::kAdamW || !local) continue;
    if (view.form == WeightForm::kStochastic) {
      out.adamw.indexed.push_back(i);
      add_pieces(out.adamw, p.layout, i, rank);
    } else {
      out.adamw.whole.push_back(i);
    }
  }
  out.clipping.clip_norm = settings.clip_norm;
  out.clipping.logits = clipper.logits();
  out.clipping.clipped = clipper.weights();
  out.clipping.tables = tables.gradient_tables();
  out.chunks.normuon = &state.normuon().states();
  out.chunks.functions = settings.functions;
  out.copy = tables.copy();
  out.serial = settings.serial;
  out.health = settings.health_every > 0;
  out.poison = settings.poison;
  return out;
}

}  // namespace muonrt

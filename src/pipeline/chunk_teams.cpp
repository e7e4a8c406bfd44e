// Which matrices of a chunk are orthogonalized together.

#include <utility>

#include "pipeline/chunk.hpp"

namespace muonrt {

namespace {

std::vector<BatchShape> shapes_of(const Context& context, const SlotPlan& plan) {
  std::vector<int32_t> ids;
  ids.reserve(plan.owned.size());
  for (const Owned& owned : plan.owned) ids.push_back(static_cast<int32_t>(owned.matrix));
  return batch_shapes(*context.plan, ids, context.ops());
}

}  // namespace

std::vector<Chunk::Team> Chunk::make_teams(const Context& context, const ChunkWork& work,
                                           const SlotPlan& plan) {
  const DType transport = context.transport();
  std::vector<Team> teams;
  std::vector<std::pair<size_t, size_t>> place;  // of each matrix: team, batch in it
  std::vector<int32_t> index_in;
  for (const BatchShape& shape : shapes_of(context, plan)) {
    Batch batch;
    batch.settings = &(*work.newton_schulz)[static_cast<size_t>(shape.group)];
    batch.method = shape.method;
    batch.raw = MatrixBatch{nullptr,  transport,   shape.m,           shape.n,
                            shape.ld, shape.count, shape.m * shape.ld};
    batch.bytes =
        batch_bytes(shape, *batch.settings, transport, context.ops(), work.health != nullptr);
    teams.resize(static_cast<size_t>(shape.team) + 1);
    std::vector<Batch>& batches = teams.back().batches;
    for (int32_t i = 0; i < shape.count; ++i) {
      batch.owned.push_back(plan.owned[static_cast<size_t>(shape.first + i)]);
      place.emplace_back(teams.size() - 1, batches.size());
      index_in.push_back(i);
    }
    batches.push_back(std::move(batch));
  }
  const auto deal = [&](const std::vector<MatrixPiece>& list, std::vector<MatrixPiece> Batch::*to) {
    for (MatrixPiece piece : list) {
      const auto [team, batch] = place[static_cast<size_t>(piece.matrix)];
      piece.matrix = index_in[static_cast<size_t>(piece.matrix)];
      (teams[team].batches[batch].*to).push_back(piece);
    }
  };
  deal(plan.gather_matrix_pieces, &Batch::unpack);
  deal(plan.return_matrix_pieces, &Batch::pack);
  return teams;
}

int64_t Chunk::scratch_bytes(const Context& context, const ChunkWork& work, const SlotPlan& plan) {
  const std::vector<BatchShape> shapes = shapes_of(context, plan);
  for (const BatchShape& s : shapes)
    reserve(context.ops(), (*work.newton_schulz)[static_cast<size_t>(s.group)], s.method, s.m, s.n);
  return largest_team(shapes, *work.newton_schulz, context.transport(), context.ops(),
                      work.health != nullptr);
}

}  // namespace muonrt

// Divides the matrices of a chunk into batches and batch groups.

#include <utility>

#include "pipeline/chunk.hpp"

namespace muonrt {

namespace {

std::vector<BatchShape> shapes_of(const PipelineContext& context, const RankChunk& plan) {
  std::vector<int32_t> ids;
  ids.reserve(plan.owned.size());
  for (const OwnedMatrix& owned : plan.owned) ids.push_back(static_cast<int32_t>(owned.matrix));
  return batch_shapes(*context.plan, ids, context.ops());
}

}  // namespace

std::vector<Chunk::BatchGroup> Chunk::make_batch_groups(const PipelineContext& context,
                                                        const ChunkConfig& config,
                                                        const RankChunk& plan) {
  const DType transport = context.transport();
  std::vector<BatchGroup> batch_groups;
  // For each matrix, its batch group and the index of its batch in that group.
  std::vector<std::pair<size_t, size_t>> batch_of;
  std::vector<int32_t> index_in;
  for (const BatchShape& shape : shapes_of(context, plan)) {
    Batch batch;
    batch.settings = &(*config.newton_schulz)[static_cast<size_t>(shape.group)];
    batch.method = shape.method;
    batch.raw = MatrixBatch{nullptr,  transport,   shape.m,           shape.n,
                            shape.ld, shape.count, shape.m * shape.ld};
    batch.bytes =
        batch_bytes(shape, *batch.settings, transport, context.ops(), config.health != nullptr);
    batch_groups.resize(static_cast<size_t>(shape.batch_group) + 1);
    std::vector<Batch>& batches = batch_groups.back().batches;
    for (int32_t i = 0; i < shape.count; ++i) {
      batch.owned.push_back(plan.owned[static_cast<size_t>(shape.first + i)]);
      batch_of.emplace_back(batch_groups.size() - 1, batches.size());
      index_in.push_back(i);
    }
    batches.push_back(std::move(batch));
  }
  const auto distribute = [&](const std::vector<MatrixBlock>& list,
                              std::vector<MatrixBlock> Batch::*to) {
    for (MatrixBlock block : list) {
      const auto [batch_group, batch] = batch_of[static_cast<size_t>(block.matrix)];
      block.matrix = index_in[static_cast<size_t>(block.matrix)];
      (batch_groups[batch_group].batches[batch].*to).push_back(block);
    }
  };
  distribute(plan.gather_matrix_blocks, &Batch::unpack);
  distribute(plan.return_matrix_blocks, &Batch::pack);
  return batch_groups;
}

int64_t Chunk::scratch_bytes(const PipelineContext& context, const ChunkConfig& config,
                             const RankChunk& plan) {
  const std::vector<BatchShape> shapes = shapes_of(context, plan);
  for (const BatchShape& s : shapes)
    reserve(context.ops(), (*config.newton_schulz)[static_cast<size_t>(s.group)], s.method, s.m,
            s.n);
  return largest_batch_group_bytes(shapes, *config.newton_schulz, context.transport(),
                                   context.ops(), config.health != nullptr);
}

}  // namespace muonrt

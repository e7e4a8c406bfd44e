#include "model/modelled_ops.hpp"

#include <algorithm>

namespace muonrt {

namespace {

int64_t elements(const MatrixBatch& x) { return x.count * x.rows * x.cols; }
int64_t bytes(const MatrixBatch& x) { return elements(x) * size_of(x.dtype); }

/// Sums the bytes of blocks.
/// @param each  Returns the bytes of one element of a block.
template <class Block, class Each>
int64_t sum(std::span<const Block> blocks, const Each& each) {
  int64_t out = 0;
  for (const Block& b : blocks) out += b.rows * b.cols * each(b);
  return out;
}

/// grad() and momentum() return the bytes of one element of the gradient and of the momentum.
int64_t grad(const ParamView& p) { return size_of(p.grad_dtype); }
int64_t momentum(const ParamView& p) { return size_of(p.momentum_dtype); }

/// Returns the bytes that a commit reads and writes for one weight. A master weight is read and
/// written; its rounded copy is only written.
int64_t weight(const ParamView& p) {
  const int64_t param = size_of(p.param_dtype);
  if (p.form == WeightForm::kMaster) return param + 8;
  return 2 * param + (p.form == WeightForm::kRemainder ? 4 : 0);
}

/// Returns the bytes that AdamW reads and writes for one element. AdamW reads the gradient, and
/// reads and writes both moments and the weight.
int64_t adamw(const ParamView& p) { return grad(p) + 16 + weight(p); }

int64_t gradients(std::span<const int32_t> list, const ParamView* params) {
  int64_t out = 0;
  for (const int32_t i : list) out += params[i].grads() * grad(params[i]);
  return out;
}

/// Returns the kind of pass that models a Muon commit. All or nearly all parameters of a list are
/// rounded in the same way, so the first block decides.
PassKind commit_of(std::span<const ShardBlock> blocks, const ParamView* params) {
  const bool stochastic =
      !blocks.empty() && params[blocks.front().param].form == WeightForm::kStochastic;
  return stochastic ? PassKind::kStochastic : PassKind::kCommit;
}

}  // namespace

void ModelledOps::pass(Stream& stream, int64_t bytes, PassKind kind, bool owned) {
  RecordedOp& op = device_.append(stream, OpKind::kLocal);
  op.bytes = bytes;
  op.seconds = profile_.pass_seconds +
               static_cast<double>(bytes) / profile_.pass_rate(kind, device_.footprint(owned));
}

void ModelledOps::move(Stream& stream, std::span<const MatrixBlock> blocks,
                       std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                       DType message) {
  RecordedOp& op = device_.append(stream, OpKind::kLocal);
  op.seconds = profile_.pass_seconds;
  for (const MatrixBlock& b : blocks) {
    const int64_t bytes = b.rows * b.cols * (size_of(message) + size_of(matrices[b.matrix].dtype));
    const bool transposed = owned[static_cast<size_t>(b.matrix)].transposed();
    const PassKind kind = transposed                            ? PassKind::kTranspose
                          : matrices[b.matrix].dtype != message ? PassKind::kPack
                                                                : PassKind::kCopy;
    op.bytes += bytes;
    op.seconds += static_cast<double>(bytes) / profile_.pass_rate(kind, device_.footprint(true));
  }
}

void ModelledOps::pack_direction(Stream& stream, std::span<const ShardBlock> blocks,
                                 const StepTables& tables, TypedBuffer message, Findings*) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) {
             const ParamView& p = tables.params[b.param];
             return grad(p) + momentum(p) + size_of(message.dtype);
           }),
       PassKind::kPack);
}

void ModelledOps::pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                                    const ParamView* params, TypedBuffer message, Findings*) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) { return grad(params[b.param]) + size_of(message.dtype); }),
       PassKind::kPack);
}

void ModelledOps::accumulate(Stream& stream, std::span<const ShardBlock> blocks, float*,
                             ConstTypedBuffer message, bool first) {
  pass(stream,
       sum(blocks, [&](const ShardBlock&) { return size_of(message.dtype) + (first ? 4 : 8); }),
       PassKind::kPack);
}

void ModelledOps::pack_adamw(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, TypedBuffer message, Findings*) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) {
             const ParamView& p = tables.params[b.param];
             return grad(p) + 8 + weight(p) / 2 + size_of(message.dtype);
           }),
       PassKind::kPack);
}

void ModelledOps::scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                       Findings*) {
  pass(stream, gradients(list, params));
}

void ModelledOps::check_masters(Stream& stream, std::span<const int32_t> list,
                                const ParamView* params, Findings*) {
  if (list.empty()) return;
  int64_t bytes = 0;
  for (const int32_t i : list) bytes += params[i].numel * (4 + size_of(params[i].param_dtype));
  pass(stream, bytes);
}

void ModelledOps::unpack(Stream& stream, std::span<const MatrixBlock> blocks,
                         std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                         ConstTypedBuffer message) {
  move(stream, blocks, owned, matrices, message.dtype);
}

void ModelledOps::pack(Stream& stream, std::span<const MatrixBlock> blocks,
                       std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                       TypedBuffer message, Findings*) {
  move(stream, blocks, owned, matrices, message.dtype);
}

void ModelledOps::normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                            const Normalization&, Findings*) {
  pass(stream, 2 * bytes(in) + bytes(out), PassKind::kNormalize, true);
}

void ModelledOps::scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                             const MatrixBatch&, const AolRule&) {
  pass(stream, 3 * bytes(gram) + 2 * bytes(x));
}

// If the device can mix shapes, consecutive symmetric products are one launch. Otherwise, and for
// other products, each batch is a separate launch.
void ModelledOps::multiply(Stream& stream, std::span<const Product> products) {
  const bool leaves = world_ > 1 && !profile_.shares_cores();
  const double left = leaves ? 1 - profile_.exchange_processors / profile_.processors : 1;
  RecordedOp* symmetric = nullptr;  // the last op, if further products can be added to it
  for (const Product& p : products) {
    if (p.alpha == 0) {
      pass(stream, 2 * bytes(p.c));
      symmetric = nullptr;
      continue;
    }
    const double flops =
        2 * static_cast<double>(p.c.rows * p.c.cols) * static_cast<double>(p.a.cols * p.c.count);
    const int64_t smallest = std::min({p.c.rows, p.c.cols, p.a.cols});
    const double rate = profile_.product_rate(smallest, p.symmetric, p.a.dtype) * left;
    const double moved = static_cast<double>(bytes(p.a) + bytes(p.b) + bytes(p.c));
    const bool joins = symmetric && p.symmetric && launch_limits().mixes_shapes;
    RecordedOp& op = joins ? *symmetric : device_.append(stream, OpKind::kProducts);
    op.flops += p.symmetric ? flops / 2 : flops;
    op.seconds += (joins ? 0 : profile_.product_seconds) +
                  std::max(flops / rate, moved / profile_.pass_bytes);
    symmetric = p.symmetric ? &op : nullptr;
  }
}

void ModelledOps::commit_muon(Stream& stream, std::span<const ShardBlock> blocks,
                              const StepTables& tables, ConstTypedBuffer message,
                              const CommitCondition&) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) {
             const ParamView& p = tables.params[b.param];
             return grad(p) + 2 * momentum(p) + size_of(message.dtype) + weight(p);
           }),
       commit_of(blocks, tables.params));
}

void ModelledOps::commit_update(Stream& stream, std::span<const ShardBlock> blocks,
                                const StepTables& tables, ConstTypedBuffer message,
                                const CommitCondition&) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) {
             return size_of(message.dtype) + weight(tables.params[b.param]);
           }),
       commit_of(blocks, tables.params));
}

void ModelledOps::commit_momentum(Stream& stream, std::span<const ShardBlock> blocks,
                                  const StepTables& tables, const CommitCondition&) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) {
             const ParamView& p = tables.params[b.param];
             return grad(p) + 2 * momentum(p);
           }),
       PassKind::kCommit);
}

void ModelledOps::commit_values(Stream& stream, std::span<const ShardBlock> blocks,
                                const ParamView* params, ConstTypedBuffer message,
                                const CommitCondition&) {
  pass(stream,
       sum(blocks,
           [&](const ShardBlock& b) {
             return size_of(message.dtype) + weight(params[b.param]) / 2;
           }),
       PassKind::kCommit);
}

void ModelledOps::commit_adamw(Stream& stream, std::span<const int32_t> list,
                               std::span<const ShardBlock> blocks, const StepTables& tables,
                               const CommitCondition&) {
  int64_t bytes = sum(blocks, [&](const ShardBlock& b) { return adamw(tables.params[b.param]); });
  for (const int32_t i : list) bytes += tables.params[i].numel * adamw(tables.params[i]);
  pass(stream, bytes, PassKind::kAdamW);
}

void ModelledOps::normuon(Stream& stream, const MatrixBatch& matrices,
                          std::span<const NormuonState>, const StepTables&) {
  pass(stream, 3 * bytes(matrices));
}

void ModelledOps::commit_normuon(Stream& stream, std::span<const NormuonState> states,
                                 const ParamView*, const CommitCondition&) {
  int64_t neurons = 0;
  for (const NormuonState& s : states) neurons += s.neurons;
  pass(stream, 8 * neurons);
}

void ModelledOps::sum_squares(Stream& stream, std::span<const int32_t> list,
                              const ParamView* params, int64_t*) {
  pass(stream, gradients(list, params));
}

void ModelledOps::tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally*) {
  pass(stream, bytes(x) + (low ? 2 * elements(x) : 0));
}

void ModelledOps::lanczos(Stream& stream, const MatrixBatch& x, float*, Lanczos*) {
  pass(stream, 2 * kLanczosSteps * bytes(x));
}

}  // namespace muonrt

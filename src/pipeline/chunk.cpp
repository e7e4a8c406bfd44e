#include "pipeline/chunk.hpp"

#include "pipeline/schedule.hpp"

namespace muonrt {

namespace {

// The first spans of every chunk. Three more follow for each batch group.
enum : int32_t { kPack, kGatherExchange, kReturnExchange, kCommit, kSum, kRelay };

/// The elements of each parameter in the message buffers of a chunk.
struct Contents {
  std::vector<ParamBytes> gather_send, gather_receive, return_send, return_receive;
};

Contents contents_of(const Plan& plan, const RankChunk& chunk) {
  const auto of_shards = [](std::vector<ParamBytes>& out, const std::vector<ShardBlock>& blocks,
                            DType dtype) {
    const int64_t each = size_of(dtype);
    for (const ShardBlock& b : blocks)
      out.push_back({b.param, b.packed_offset * each, (b.packed_offset + b.rows * b.cols) * each});
  };
  const auto of_matrices = [&](std::vector<ParamBytes>& out, const std::vector<MatrixBlock>& blocks,
                               DType dtype) {
    const int64_t each = size_of(dtype);
    for (const MatrixBlock& b : blocks) {
      const int32_t matrix = chunk.owned[static_cast<size_t>(b.matrix)].matrix;
      out.push_back({plan.matrices()[static_cast<size_t>(matrix)].param, b.packed_offset * each,
                     (b.packed_offset + b.rows * b.cols) * each});
    }
  };
  Contents out;
  of_shards(out.gather_send, chunk.gather_blocks, chunk.gather_dtype);
  of_shards(out.return_receive, chunk.return_blocks, chunk.return_dtype);
  if (chunk.kind == ChunkKind::kDirections)
    of_matrices(out.gather_receive, chunk.gather_matrix_blocks, chunk.gather_dtype);
  for (const std::vector<ShardBlock>& blocks : chunk.partial_grad_blocks)
    of_shards(out.gather_receive, blocks, chunk.gather_dtype);
  if (chunk.kind != ChunkKind::kSlices) {
    of_matrices(out.return_send, chunk.return_matrix_blocks, chunk.return_dtype);
  } else {
    of_shards(out.return_send, chunk.owner_state_blocks, chunk.return_dtype);
    for (size_t i = 0; i < out.return_send.size(); ++i)  // here, param is a table index
      out.return_send[i].param = chunk.owner_state[i].param;
  }
  return out;
}

template <class Message>
std::vector<Message> resolve(const std::vector<Region>& regions, void* buffer) {
  std::vector<Message> out;
  out.reserve(regions.size());
  for (const Region& r : regions) {
    out.push_back({r.peer, static_cast<char*>(buffer) + r.offset, r.bytes});
  }
  return out;
}

}  // namespace

Chunk::Chunk(const PipelineContext& context, const ChunkConfig& config, const RankChunk& plan,
             const MessageBuffers& buffers, void* return_receive, void* scratch)
    : context_(&context),
      config_(&config),
      plan_(&plan),
      buffers_(buffers),
      return_receive_(return_receive),
      batch_groups_(make_batch_groups(context, config, plan)),
      packed_(context.device->create_event()),
      arrived_(context.device->create_event()),
      produced_(context.device->create_event()),
      returned_(context.device->create_event()) {
  spans_ = {{"pack", plan.index, SpanKind::kLocal},
            {"gather exchange", plan.index, SpanKind::kExchange},
            {"return exchange", plan.index, SpanKind::kExchange},
            {"commit", plan.index, SpanKind::kLocal},
            {"sum", plan.index, SpanKind::kLocal},
            {"relay exchange", plan.index, SpanKind::kExchange}};
  int32_t owned = 0;
  for (BatchGroup& batch_group : batch_groups_) {
    batch_group.span = static_cast<int32_t>(spans_.size());
    spans_.push_back({"unpack", plan.index, SpanKind::kLocal});
    spans_.push_back({"newton-schulz", plan.index, SpanKind::kProducts});
    spans_.back().first_owned = owned;
    auto* at = static_cast<char*>(scratch);
    for (Batch& batch : batch_group.batches) {
      bind(batch, at);
      at += batch.bytes.total();
      owned += static_cast<int32_t>(batch.owned.size());
    }
    spans_.back().owned = owned - spans_.back().first_owned;
    spans_.push_back({"pack update", plan.index, SpanKind::kLocal});
    batch_group.newton_schulz = newton_schulz_of(batch_group, false);
    if (config.health) batch_group.with_statistics = newton_schulz_of(batch_group, true);
  }
  normuon_ = normuon_of(plan.owned);
  times_ = SpanTimes(*context.device, spans_.size());
  resolve_messages(buffers, return_receive);
  bind_callbacks();
}

void Chunk::bind(Batch& batch, void* scratch) {
  batch.raw.data = scratch;
  batch.workspace = static_cast<char*>(scratch) + batch.bytes.raw;
  if (config_->health)
    batch.lanczos =
        reinterpret_cast<float*>(static_cast<char*>(batch.workspace) + batch.bytes.workspace);
  for (int64_t i = 0; i < batch.raw.count; ++i) {
    MatrixBatch one = batch.raw;
    one.data = static_cast<char*>(scratch) + i * one.stride * size_of(one.dtype);
    one.count = 1;
    batch.raw_each.push_back(one);
  }
  batch.result_each.resize(batch.raw_each.size());
  batch.normuon = normuon_of(batch.owned);
  if (!batch.settings->scales_neurons()) return;
  batch.lines.resize(2 * batch.owned.size());
  for (size_t i = 0; i < batch.owned.size(); ++i)
    batch.lines[i].stored_rows = batch.owned[i].inputs_first == batch.owned[i].transposed();
}

Orthogonalization Chunk::newton_schulz_of(BatchGroup& batch_group, bool with_statistics) const {
  std::vector<OrthogonalizeArgs> batches;
  for (Batch& b : batch_group.batches) {
    const auto first = static_cast<int32_t>(b.owned.front().matrix);
    Tally* const q = with_statistics ? config_->health->batch_statistics_of(first).q : nullptr;
    batches.push_back({b.settings, &b.method, b.raw, b.workspace, q, b.lines});
  }
  const PipelineContext& c = *context_;
  return Orthogonalization(c.ops(), *c.compute, batches, c.results.findings);
}

std::vector<NormuonState> Chunk::normuon_of(const std::vector<OwnedMatrix>& owned) const {
  std::vector<NormuonState> states;
  bool any = false;
  for (const OwnedMatrix& one : owned) {
    const auto matrix = static_cast<size_t>(one.matrix);
    const bool has_normuon = config_->normuon && (*config_->normuon)[matrix].neurons > 0;
    states.push_back(has_normuon ? (*config_->normuon)[matrix] : NormuonState{});
    any = any || has_normuon;
  }
  return any ? states : std::vector<NormuonState>{};
}

void Chunk::resolve_messages(const MessageBuffers& buffers, void* return_receive) {
  gather_sends_ = resolve<SendTo>(plan_->gather_sends, buffers.gather_send);
  gather_receives_ = resolve<ReceiveFrom>(plan_->gather_receives, buffers.gather_receive);
  return_sends_ = resolve<SendTo>(plan_->return_sends, buffers.return_send);
  return_receives_ = resolve<ReceiveFrom>(plan_->return_receives, return_receive);
  relay_sends_ = resolve<SendTo>(plan_->relay_sends, return_receive);
  relay_receives_ = resolve<ReceiveFrom>(plan_->relay_receives, return_receive);
  if (!config_->omit_inactive || !plan_->callbacks.empty()) return;
  Contents contents = contents_of(*context_->plan, *plan_);
  sent_by_gather_ = {plan_->gather_sends, std::move(contents.gather_send)};
  received_by_gather_ = {plan_->gather_receives, std::move(contents.gather_receive)};
  sent_by_return_ = {plan_->return_sends, std::move(contents.return_send)};
  received_by_return_ = {plan_->return_receives, std::move(contents.return_receive)};
}

void Chunk::bind_callbacks() {
  const auto at = [](void* buffer, int64_t offset, int64_t bytes) {
    return bytes > 0 ? static_cast<char*>(buffer) + offset : nullptr;
  };
  for (const CallbackTransfer& t : plan_->callbacks) {
    BoundCallback call{&config_->callbacks, config_->failure, true, t.param, t.owner};
    call.local = at(buffers_.gather_send, t.local_offset, t.local_bytes);
    call.full = at(buffers_.gather_receive, t.full_offset, t.full_bytes);
    gather_callbacks_.push_back(call);
    call.gathers = false;
    call.local = at(return_receive_, t.local_offset, t.local_bytes);
    call.full = at(buffers_.return_send, t.full_offset, t.full_bytes);
    return_callbacks_.push_back(call);
  }
}

void Chunk::exchange(int32_t span, const Messages& messages) {
  const PipelineContext& c = *context_;
  if (messages.sends.empty() && messages.receives.empty()) return;
  if (c.warming_up) return c.comm->prepare_exchange(messages);
  Span& timed = spans_[static_cast<size_t>(span)];
  timed.bytes_sent = bytes_of_peers(messages.sends, c.comm->rank());
  timed.bytes_received = bytes_of_peers(messages.receives, c.comm->rank());
  begin(span, *c.exchange);
  c.comm->exchange(*c.exchange, messages.sends, messages.receives);
  end(span, *c.exchange);
}

void Chunk::call(int32_t span, std::vector<BoundCallback>& callbacks) {
  const PipelineContext& c = *context_;
  if (c.warming_up) return;
  begin(span, *c.exchange);
  for (BoundCallback& callback : callbacks)
    c.device->call(*c.exchange, &BoundCallback::run, &callback, &c.results.findings->failed);
  end(span, *c.exchange);
}

void Chunk::exchange_gather() {
  if (!plan_->callbacks.empty()) return call(kGatherExchange, gather_callbacks_);
  exchange(kGatherExchange, {gather_sends_, gather_receives_});
}

void Chunk::exchange_return() {
  if (!plan_->callbacks.empty()) return call(kReturnExchange, return_callbacks_);
  exchange(kReturnExchange, {return_sends_, return_receives_});
}

// Forwards updates from the buffer to which the return exchange has written them. Both exchanges
// run on the same stream, so the forwarding starts after the return.
void Chunk::relay() { exchange(kRelay, {relay_sends_, relay_receives_}); }

// All ranks return the same value, because it depends only on the step number, which the ranks
// compare before the step. The parameters of a chunk that rests are inactive, so its commits change
// nothing.
bool Chunk::rests(const StepInputs& inputs) const {
  const int64_t every = plan_->update_every;
  return inputs.committed % every != every - 1 && !context_->warming_up;
}

void Chunk::select_gather(const StepInputs& inputs) {
  if (!config_->omit_inactive || !plan_->callbacks.empty()) return;
  sent_by_gather_.select(gather_sends_, buffers_.gather_send, inputs.omits_inactive);
  received_by_gather_.select(gather_receives_, buffers_.gather_receive, inputs.omits_inactive);
}

// If the return has two levels, whole messages are always sent and forwarded.
void Chunk::select_return(const StepInputs& inputs) {
  const ChunkSpec& chunk = context_->plan->chunks()[static_cast<size_t>(plan_->index)];
  if (!config_->omit_inactive || !plan_->callbacks.empty() || chunk.relay > 0) return;
  sent_by_return_.select(return_sends_, buffers_.return_send, inputs.omits_inactive);
  received_by_return_.select(return_receives_, return_receive_, inputs.omits_inactive);
}

void Chunk::pack_gather(bool rests) {
  const PipelineContext& c = *context_;
  if (previous_) c.device->wait(*c.compute, *previous_->arrived_);
  if (!plan_->gather_blocks.empty() && !rests) {
    begin(kPack, *c.compute);
    const TypedBuffer message{.data = buffers_.gather_send, .dtype = plan_->gather_dtype};
    if (plan_->kind == ChunkKind::kDirections) {
      c.ops().pack_direction(*c.compute, plan_->gather_blocks, c.tables, message,
                             c.results.findings);
    } else {
      c.ops().pack_partial_grad(*c.compute, plan_->gather_blocks, c.tables.params, message,
                                c.results.findings);
    }
    end(kPack, *c.compute);
  }
  // Ranks that only receive also record the event, because their receives must wait for the unpack
  // that last read the receive buffer.
  c.device->record(*packed_, *c.compute);
  c.device->wait(*c.exchange, *packed_);
}

void Chunk::gather(const StepInputs& inputs) {
  select_gather(inputs);
  pack_gather(rests(inputs));
  if (!rests(inputs)) exchange_gather();
  context_->device->record(*arrived_, *context_->exchange);
}

// Adds the partial gradients. The sums become the gradients of the owner state, which the ops then
// treat like a parameter.
void Chunk::sum() {
  const PipelineContext& c = *context_;
  begin(kSum, *c.compute);
  for (size_t a = 0; a < plan_->partial_grad_blocks.size(); ++a)
    c.ops().accumulate(*c.compute, plan_->partial_grad_blocks[a], buffers_.sums,
                       {.data = buffers_.gather_receive, .dtype = plan_->gather_dtype}, a == 0);
  if (plan_->kind == ChunkKind::kSlices) {
    c.ops().pack_adamw(*c.compute, plan_->owner_state_blocks, c.tables,
                       {.data = buffers_.return_send, .dtype = plan_->return_dtype},
                       c.results.findings);
  } else {
    c.ops().pack_direction(*c.compute, plan_->owner_state_blocks, c.tables,
                           {.data = buffers_.directions, .dtype = plan_->return_dtype},
                           c.results.findings);
  }
  end(kSum, *c.compute);
}

Health::BatchStatistics Chunk::statistics_of(const Batch& batch) const {
  const Health* health = config_->health;
  return health ? health->active_statistics_of(batch.owned.front().matrix)
                : Health::BatchStatistics{};
}

// Captures Newton-Schulz as a graph in its second run; the first run allocates the memory that
// products of a new shape need. A run that collects statistics is not captured. The graph can be
// launched repeatedly because the addresses of matrices, workspace and findings do not change.
void Chunk::run_newton_schulz(BatchGroup& batch_group) {
  const PipelineContext& c = *context_;
  const bool collects = config_->health && config_->health->collects();
  const Orthogonalization& newton_schulz =
      *(collects ? batch_group.with_statistics : batch_group.newton_schulz);
  for (size_t i = 0; i < batch_group.batches.size(); ++i)
    batch_group.batches[i].result = newton_schulz.results()[i];
  GraphCapture* const capture = graph_capture_of(*c.device);
  if (!capture || !batch_group.ran || collects) {
    newton_schulz.enqueue();
    batch_group.ran = true;
    return;
  }
  if (!batch_group.graph)
    batch_group.graph = capture_graph(*capture, *c.compute, [&] { newton_schulz.enqueue(); });
  capture->launch_graph(*c.compute, *batch_group.graph);
}

void Chunk::finish(Batch& batch) {
  const PipelineContext& c = *context_;
  const Health::BatchStatistics health = statistics_of(batch);
  if (health.lanczos) c.ops().lanczos(*c.compute, batch.result, batch.lanczos, health.lanczos);
  for (size_t i = 0; i < batch.result_each.size(); ++i) {
    MatrixBatch one = batch.result;
    one.data =
        static_cast<char*>(one.data) + static_cast<int64_t>(i) * one.stride * size_of(one.dtype);
    one.count = 1;
    batch.result_each[i] = one;
  }
  if (!batch.normuon.empty()) c.ops().normuon(*c.compute, batch.result, batch.normuon, c.tables);
  if (health.updates) c.ops().tally(*c.compute, batch.result, nullptr, health.updates);
}

void Chunk::run(BatchGroup& batch_group) {
  const PipelineContext& c = *context_;
  const ConstTypedBuffer message{.data = plan_->kind == ChunkKind::kPartialGrads
                                             ? buffers_.directions
                                             : buffers_.gather_receive,
                                 .dtype = c.transport()};
  begin(batch_group.span, *c.compute);
  for (const Batch& batch : batch_group.batches)
    c.ops().unpack(*c.compute, batch.unpack, batch.owned, batch.raw_each.data(), message);
  end(batch_group.span, *c.compute);
  begin(batch_group.span + 1, *c.compute);
  run_newton_schulz(batch_group);
  end(batch_group.span + 1, *c.compute);
  for (Batch& batch : batch_group.batches) finish(batch);
  begin(batch_group.span + 2, *c.compute);
  for (const Batch& batch : batch_group.batches)
    c.ops().pack(*c.compute, batch.pack, batch.owned, batch.result_each.data(),
                 {.data = buffers_.return_send, .dtype = c.transport()}, c.results.findings);
  end(batch_group.span + 2, *c.compute);
}

void Chunk::produce(const StepInputs& inputs) {
  const PipelineContext& c = *context_;
  if (!rests(inputs) && (!batch_groups_.empty() || !plan_->owner_state.empty())) {
    c.device->wait(*c.compute, *arrived_);
    if (previous_) c.device->wait(*c.compute, *previous_->returned_);
    // Omitted gradients count as zeros. A rank that sends an inactive parameter also sends zeros.
    if (inputs.omits_inactive)
      received_by_gather_.for_each_omitted(inputs.omits_inactive, [&](int64_t begin, int64_t end) {
        c.ops().fill(*c.compute, static_cast<char*>(buffers_.gather_receive) + begin, 0,
                     end - begin);
      });
    if (!plan_->owner_state.empty()) sum();
    for (BatchGroup& batch_group : batch_groups_) run(batch_group);
  }
  c.device->record(*produced_, *c.compute);
  c.device->wait(*c.exchange, *produced_);
}

void Chunk::orthogonalize(const StepInputs& inputs) {
  select_return(inputs);
  produce(inputs);
  if (!rests(inputs)) {
    exchange_return();
    relay();
  }
  context_->device->record(*returned_, *context_->exchange);
}

void Chunk::commit(const StepInputs& inputs) {
  const PipelineContext& c = *context_;
  const RankChunk& p = *plan_;
  const CommitCondition condition = c.commit_condition(inputs.fingerprint);
  if (!normuon_.empty()) c.ops().commit_normuon(*c.compute, normuon_, c.tables.params, condition);
  if (p.return_blocks.empty() && p.owner_state.empty()) return;
  c.device->wait(*c.compute, *returned_);
  const ConstTypedBuffer message{.data = return_receive_, .dtype = p.return_dtype};
  begin(kCommit, *c.compute);
  switch (p.kind) {
    case ChunkKind::kDirections:
      c.ops().commit_muon(*c.compute, p.return_blocks, c.tables, message, condition);
      break;
    case ChunkKind::kPartialGrads:
      c.ops().commit_momentum(*c.compute, p.owner_state_blocks, c.tables, condition);
      c.ops().commit_update(*c.compute, p.return_blocks, c.tables, message, condition);
      break;
    case ChunkKind::kSlices:
      c.ops().commit_values(*c.compute, p.return_blocks, c.tables.params, message, condition);
      c.ops().commit_adamw(*c.compute, p.owner_state_views, {}, c.tables, condition);
      break;
  }
  end(kCommit, *c.compute);
}

}  // namespace muonrt

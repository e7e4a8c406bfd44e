#include "pipeline/chunk.hpp"

#include "pipeline/schedule.hpp"

namespace muonrt {

namespace {

// Spans that every chunk has; three more follow for each team.
enum : int32_t { kPack, kGatherExchange, kReturnExchange, kCommit, kSum, kRelay };

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

Chunk::Chunk(const PipelineContext& context, const ChunkConfig& work, const RankChunk& plan,
             const MessageBuffers& buffers, void* return_receive, void* scratch)
    : context_(&context),
      work_(&work),
      plan_(&plan),
      buffers_(buffers),
      return_receive_(return_receive),
      teams_(make_batch_groups(context, work, plan)),
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
  for (BatchGroup& batch_group : teams_) {
    batch_group.span = static_cast<int32_t>(spans_.size());
    spans_.push_back({"unpack", plan.index, SpanKind::kLocal});
    spans_.push_back({"newton-schulz", plan.index, SpanKind::kProducts});
    spans_.push_back({"pack update", plan.index, SpanKind::kLocal});
    auto* at = static_cast<char*>(scratch);
    for (Batch& batch : batch_group.batches) {
      bind(batch, at);
      at += batch.bytes.total();
    }
    batch_group.newton_schulz = newton_schulz_of(batch_group, false);
    if (work.health) batch_group.measured = newton_schulz_of(batch_group, true);
  }
  normuon_ = normuon_of(plan.owned);
  times_ = SpanTimes(*context.device, spans_.size());
  resolve_messages(buffers, return_receive);
  if (plan.callback_param >= 0) bind_functions();
}

void Chunk::bind(Batch& batch, void* scratch) {
  batch.raw.data = scratch;
  batch.workspace = static_cast<char*>(scratch) + batch.bytes.raw;
  if (work_->health)
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

Orthogonalization Chunk::newton_schulz_of(BatchGroup& batch_group, bool measures) const {
  std::vector<OrthogonalizeArgs> batches;
  for (Batch& b : batch_group.batches) {
    const auto first = static_cast<int32_t>(b.owned.front().matrix);
    Tally* const q = measures ? work_->health->batch_statistics_of(first).q : nullptr;
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
    const bool here = work_->normuon && (*work_->normuon)[matrix].neurons > 0;
    states.push_back(here ? (*work_->normuon)[matrix] : NormuonState{});
    any = any || here;
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
}

void Chunk::bind_functions() {
  const RankChunk& plan = *plan_;
  const int32_t owner =
      context_->plan
          ->matrices()[static_cast<size_t>(
              context_->plan->chunks()[static_cast<size_t>(plan.index)].matrices.front())]
          .owner;
  BoundCallback call{&work_->functions, work_->failure, true, plan.callback_param, owner};
  call.local = plan.gather_send_bytes ? buffers_.gather_send : nullptr;
  call.full = plan.gather_receive_bytes ? buffers_.gather_receive : nullptr;
  gather_call_ = call;
  call.gathers = false;
  call.local = plan.return_receive_bytes ? return_receive_ : nullptr;
  call.full = plan.return_send_bytes ? buffers_.return_send : nullptr;
  return_call_ = call;
}

bool Chunk::moves_gather() const { return !gather_sends_.empty() || !gather_receives_.empty(); }
bool Chunk::moves_return() const { return !return_sends_.empty() || !return_receives_.empty(); }

void Chunk::exchange(int32_t span, const Messages& messages) {
  const PipelineContext& c = *context_;
  if (c.warming_up) return c.comm->prepare_exchange(messages);
  begin(span, *c.exchange);
  c.comm->exchange(*c.exchange, messages.sends, messages.receives);
  end(span, *c.exchange);
}

void Chunk::call(int32_t span, BoundCallback& function) {
  const PipelineContext& c = *context_;
  if (c.warming_up) return;
  begin(span, *c.exchange);
  c.device->call(*c.exchange, &BoundCallback::run, &function, &c.results.findings->failed);
  end(span, *c.exchange);
}

void Chunk::exchange_gather() {
  if (plan_->callback_param >= 0) return call(kGatherExchange, gather_call_);
  if (moves_gather()) exchange(kGatherExchange, {gather_sends_, gather_receives_});
}

void Chunk::exchange_return() {
  if (plan_->callback_param >= 0) return call(kReturnExchange, return_call_);
  if (moves_return()) exchange(kReturnExchange, {return_sends_, return_receives_});
}

// What the return has brought goes on from where it lies; the stream keeps the two in order.
void Chunk::relay() {
  if (relay_sends_.empty() && relay_receives_.empty()) return;
  exchange(kRelay, {relay_sends_, relay_receives_});
}

void Chunk::pack_gather() {
  const PipelineContext& c = *context_;
  if (previous_) c.device->wait(*c.compute, *previous_->arrived_);
  if (!plan_->gather_blocks.empty()) {
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
  // Recorded by ranks that only receive, too: the unpack that last read the buffer lies before it.
  c.device->record(*packed_, *c.compute);
  c.device->wait(*c.exchange, *packed_);
}

void Chunk::gather() {
  pack_gather();
  exchange_gather();
  context_->device->record(*arrived_, *context_->exchange);
}

// The addends become gradients of what is kept here, which then goes the way of any parameter.
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

Health::BatchStatistics Chunk::records(const Batch& batch) const {
  const Health* health = work_->health;
  return health ? health->records(batch.owned.front().matrix) : Health::BatchStatistics{};
}

/// The first run is never recorded: it makes what products need where a shape is met first. Nor is
/// one that measures. Raw, workspace and findings stay where they are.
void Chunk::run_newton_schulz(BatchGroup& batch_group) {
  const PipelineContext& c = *context_;
  const bool measures = work_->health && work_->health->measures();
  const Orthogonalization& work = *(measures ? batch_group.measured : batch_group.newton_schulz);
  for (size_t i = 0; i < batch_group.batches.size(); ++i)
    batch_group.batches[i].result = work.results()[i];
  GraphCapture* const recorder = graph_capture_of(*c.device);
  if (!recorder || !batch_group.ran || measures) {
    work.enqueue();
    batch_group.ran = true;
    return;
  }
  if (!batch_group.recording)
    batch_group.recording = capture_graph(*recorder, *c.compute, [&] { work.enqueue(); });
  recorder->launch_graph(*c.compute, *batch_group.recording);
}

void Chunk::finish(Batch& batch) {
  const PipelineContext& c = *context_;
  const Health::BatchStatistics health = records(batch);
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

void Chunk::produce() {
  const PipelineContext& c = *context_;
  if (!teams_.empty() || !plan_->owner_state.empty()) {
    c.device->wait(*c.compute, *arrived_);
    if (previous_) c.device->wait(*c.compute, *previous_->returned_);
    if (!plan_->owner_state.empty()) sum();
    for (BatchGroup& batch_group : teams_) run(batch_group);
  }
  c.device->record(*produced_, *c.compute);
  c.device->wait(*c.exchange, *produced_);
}

void Chunk::orthogonalize() {
  produce();
  exchange_return();
  relay();
  context_->device->record(*returned_, *context_->exchange);
}

void Chunk::commit(const StepInputs& run) {
  const PipelineContext& c = *context_;
  const RankChunk& p = *plan_;
  const CommitCondition vote_sum = c.commit_condition(run.fingerprint);
  if (!normuon_.empty()) c.ops().commit_normuon(*c.compute, normuon_, c.tables.params, vote_sum);
  if (p.return_blocks.empty() && p.owner_state.empty()) return;
  c.device->wait(*c.compute, *returned_);
  const ConstTypedBuffer message{.data = return_receive_, .dtype = p.return_dtype};
  begin(kCommit, *c.compute);
  switch (p.kind) {
    case ChunkKind::kDirections:
      c.ops().commit_muon(*c.compute, p.return_blocks, c.tables, message, vote_sum);
      break;
    case ChunkKind::kPartialGrads:
      c.ops().commit_momentum(*c.compute, p.owner_state_blocks, c.tables, vote_sum);
      c.ops().commit_update(*c.compute, p.return_blocks, c.tables, message, vote_sum);
      break;
    case ChunkKind::kSlices:
      c.ops().commit_values(*c.compute, p.return_blocks, c.tables.params, message, vote_sum);
      c.ops().commit_adamw(*c.compute, p.owner_state_views, {}, c.tables, vote_sum);
      break;
  }
  end(kCommit, *c.compute);
}

}  // namespace muonrt

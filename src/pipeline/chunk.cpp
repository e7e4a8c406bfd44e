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

Chunk::Chunk(const Context& context, const ChunkWork& work, const SlotPlan& plan,
             const MessageBuffers& buffers, void* return_receive, void* scratch)
    : context_(&context),
      work_(&work),
      plan_(&plan),
      buffers_(buffers),
      return_receive_(return_receive),
      teams_(make_teams(context, work, plan)),
      packed_(context.device->create_event()),
      arrived_(context.device->create_event()),
      produced_(context.device->create_event()),
      returned_(context.device->create_event()) {
  spans_ = {{"pack", plan.slot, Work::kLocal},
            {"gather exchange", plan.slot, Work::kExchange},
            {"return exchange", plan.slot, Work::kExchange},
            {"commit", plan.slot, Work::kLocal},
            {"sum", plan.slot, Work::kLocal},
            {"relay exchange", plan.slot, Work::kExchange}};
  for (Team& team : teams_) {
    team.span = static_cast<int32_t>(spans_.size());
    spans_.push_back({"unpack", plan.slot, Work::kLocal});
    spans_.push_back({"newton-schulz", plan.slot, Work::kProducts});
    spans_.push_back({"pack update", plan.slot, Work::kLocal});
    auto* at = static_cast<char*>(scratch);
    for (Batch& batch : team.batches) {
      bind(batch, at);
      at += batch.bytes.all();
    }
    team.newton_schulz = newton_schulz_of(team, false);
    if (work.health) team.measured = newton_schulz_of(team, true);
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
        reinterpret_cast<float*>(static_cast<char*>(batch.workspace) + batch.bytes.work);
  for (int64_t i = 0; i < batch.raw.count; ++i) {
    MatrixBatch one = batch.raw;
    one.data = static_cast<char*>(scratch) + i * one.stride * size_of(one.dtype);
    one.count = 1;
    batch.raw_each.push_back(one);
  }
  batch.result_each.resize(batch.raw_each.size());
  batch.normuon = normuon_of(batch.owned);
  if (!batch.settings->scales_lines()) return;
  batch.lines.resize(2 * batch.owned.size());
  for (size_t i = 0; i < batch.owned.size(); ++i)
    batch.lines[i].stored_rows = batch.owned[i].inputs_first == batch.owned[i].transposed();
}

Orthogonalization Chunk::newton_schulz_of(Team& team, bool measures) const {
  std::vector<OrthogonalizeArgs> batches;
  for (Batch& b : team.batches) {
    const auto first = static_cast<int32_t>(b.owned.front().matrix);
    Tally* const q = measures ? work_->health->records_of(first).q : nullptr;
    batches.push_back({b.settings, &b.method, b.raw, b.workspace, q, b.lines});
  }
  const Context& c = *context_;
  return Orthogonalization(c.ops(), *c.compute, batches, c.results.findings);
}

std::vector<NormuonState> Chunk::normuon_of(const std::vector<Owned>& owned) const {
  std::vector<NormuonState> states;
  bool any = false;
  for (const Owned& one : owned) {
    const auto matrix = static_cast<size_t>(one.matrix);
    const bool here = work_->normuon && (*work_->normuon)[matrix].lines > 0;
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
  const SlotPlan& plan = *plan_;
  const int32_t owner =
      context_->plan
          ->matrices()[static_cast<size_t>(
              context_->plan->slots()[static_cast<size_t>(plan.slot)].matrices.front())]
          .owner;
  FunctionCall call{&work_->functions, work_->failure, true, plan.callback_param, owner};
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
  const Context& c = *context_;
  if (c.rehearses) return c.comm->prepare_exchange(messages);
  begin(span, *c.exchange);
  c.comm->exchange(*c.exchange, messages.sends, messages.receives);
  end(span, *c.exchange);
}

void Chunk::call(int32_t span, FunctionCall& function) {
  const Context& c = *context_;
  if (c.rehearses) return;
  begin(span, *c.exchange);
  c.device->call(*c.exchange, &FunctionCall::run, &function, &c.results.findings->failed);
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
  const Context& c = *context_;
  if (previous_) c.device->wait(*c.compute, *previous_->arrived_);
  if (!plan_->gather_pieces.empty()) {
    begin(kPack, *c.compute);
    const Wire message{.data = buffers_.gather_send, .dtype = plan_->gather_dtype};
    if (plan_->kind == SlotKind::kDirections) {
      c.ops().pack_direction(*c.compute, plan_->gather_pieces, c.tables, message,
                             c.results.findings);
    } else {
      c.ops().pack_addend(*c.compute, plan_->gather_pieces, c.tables.params, message,
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
  const Context& c = *context_;
  begin(kSum, *c.compute);
  for (size_t a = 0; a < plan_->addends.size(); ++a)
    c.ops().accumulate(*c.compute, plan_->addends[a], buffers_.sums,
                       {.data = buffers_.gather_receive, .dtype = plan_->gather_dtype}, a == 0);
  if (plan_->kind == SlotKind::kSlices) {
    c.ops().pack_adamw(*c.compute, plan_->owner_pieces, c.tables,
                       {.data = buffers_.return_send, .dtype = plan_->return_dtype},
                       c.results.findings);
  } else {
    c.ops().pack_direction(*c.compute, plan_->owner_pieces, c.tables,
                           {.data = buffers_.directions, .dtype = plan_->return_dtype},
                           c.results.findings);
  }
  end(kSum, *c.compute);
}

Health::Records Chunk::records(const Batch& batch) const {
  const Health* health = work_->health;
  return health ? health->records(batch.owned.front().matrix) : Health::Records{};
}

/// The first run is never recorded: it makes what products need where a shape is met first. Nor is
/// one that measures. Raw, workspace and findings stay where they are.
void Chunk::run_newton_schulz(Team& team) {
  const Context& c = *context_;
  const bool measures = work_->health && work_->health->measures();
  const Orthogonalization& work = *(measures ? team.measured : team.newton_schulz);
  for (size_t i = 0; i < team.batches.size(); ++i) team.batches[i].result = work.results()[i];
  Recorder* const recorder = recorder_of(*c.device);
  if (!recorder || !team.ran || measures) {
    work.enqueue();
    team.ran = true;
    return;
  }
  if (!team.recording) team.recording = record_work(*recorder, *c.compute, [&] { work.enqueue(); });
  recorder->replay(*c.compute, *team.recording);
}

void Chunk::finish(Batch& batch) {
  const Context& c = *context_;
  const Health::Records health = records(batch);
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

void Chunk::run(Team& team) {
  const Context& c = *context_;
  const ConstWire message{
      .data = plan_->kind == SlotKind::kAddends ? buffers_.directions : buffers_.gather_receive,
      .dtype = c.transport()};
  begin(team.span, *c.compute);
  for (const Batch& batch : team.batches)
    c.ops().unpack(*c.compute, batch.unpack, batch.owned, batch.raw_each.data(), message);
  end(team.span, *c.compute);
  begin(team.span + 1, *c.compute);
  run_newton_schulz(team);
  end(team.span + 1, *c.compute);
  for (Batch& batch : team.batches) finish(batch);
  begin(team.span + 2, *c.compute);
  for (const Batch& batch : team.batches)
    c.ops().pack(*c.compute, batch.pack, batch.owned, batch.result_each.data(),
                 {.data = buffers_.return_send, .dtype = c.transport()}, c.results.findings);
  end(team.span + 2, *c.compute);
}

void Chunk::produce() {
  const Context& c = *context_;
  if (!teams_.empty() || !plan_->owner_state.empty()) {
    c.device->wait(*c.compute, *arrived_);
    if (previous_) c.device->wait(*c.compute, *previous_->returned_);
    if (!plan_->owner_state.empty()) sum();
    for (Team& team : teams_) run(team);
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

void Chunk::commit(const StepRun& run) {
  const Context& c = *context_;
  const SlotPlan& p = *plan_;
  const Verdict verdict = c.verdict(run.stamp);
  if (!normuon_.empty()) c.ops().commit_normuon(*c.compute, normuon_, c.tables.params, verdict);
  if (p.return_pieces.empty() && p.owner_state.empty()) return;
  c.device->wait(*c.compute, *returned_);
  const ConstWire message{.data = return_receive_, .dtype = p.return_dtype};
  begin(kCommit, *c.compute);
  switch (p.kind) {
    case SlotKind::kDirections:
      c.ops().commit_muon(*c.compute, p.return_pieces, c.tables, message, verdict);
      break;
    case SlotKind::kAddends:
      c.ops().commit_momentum(*c.compute, p.owner_pieces, c.tables, verdict);
      c.ops().commit_update(*c.compute, p.return_pieces, c.tables, message, verdict);
      break;
    case SlotKind::kSlices:
      c.ops().commit_values(*c.compute, p.return_pieces, c.tables.params, message, verdict);
      c.ops().commit_adamw(*c.compute, p.owner_views, {}, c.tables, verdict);
      break;
  }
  end(kCommit, *c.compute);
}

}  // namespace muonrt

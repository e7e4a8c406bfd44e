#include "model/direct_step.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "model/modelled_device.hpp"
#include "pipeline/batches.hpp"

namespace muonrt {

namespace {

class DirectStep {
 public:
  DirectStep(const Plan& plan, const std::vector<NewtonSchulz>& methods, const MatrixRules& rules,
             const MachineProfile& profile, int32_t rank, std::vector<DirectChunk> chunks)
      : plan_(plan),
        methods_(methods),
        rules_(rules),
        device_(profile, rules, rank, plan.problem().options.world),
        chunks_(std::move(chunks)),
        compute_(device_.create_stream(StreamKind::kCompute)),
        comm_(device_.create_stream(StreamKind::kComm)) {
    for (size_t i = 0; i < 2 * chunks_.size(); ++i) events_.push_back(device_.create_event());
  }

  RankRecording run(int window, int64_t last_bytes, int64_t* scratch) {
    const size_t n = chunks_.size(), ahead = std::min(n, static_cast<size_t>(window));
    const size_t delay = window > 1 ? 1 : 0;
    for (size_t i = 0; i < ahead; ++i) gather(i);
    for (size_t i = 0; i < n; ++i) {
      orthogonalize(i);
      if (i >= delay) commit(i - delay);
      if (i + ahead < n) gather(i + ahead);
    }
    if (n > 0 && delay == 1) commit(n - 1);
    pass(last_bytes);
    if (scratch) *scratch = scratch_;
    return device_.recording();
  }

 private:
  void gather(size_t i) {
    pass(chunks_[i].pack_bytes);
    exchange_for(chunks_[i].gather_seconds, *events_[2 * i]);
  }

  void orthogonalize(size_t i) {
    DirectChunk& c = chunks_[i];
    device_.wait(*compute_, *events_[2 * i]);
    pass(c.unpack_bytes);
    products(c.matrices);
    pass(c.result_bytes);
    exchange_for(c.return_seconds, *events_[2 * i + 1]);
    for (RecordedExchange* x : {&c.give_back, &c.relay}) {
      if (x->sends.empty() && x->receives.empty()) continue;
      if (x == &c.give_back) join();
      std::vector<RecordedExchange>& all = device_.recording().exchanges;
      device_.append(*comm_, OpKind::kExchange).index = std::ssize(all);
      all.push_back(std::move(*x));
      device_.record(*events_[2 * i + 1], *comm_);
    }
  }

  void commit(size_t i) {
    device_.wait(*compute_, *events_[2 * i + 1]);
    pass(chunks_[i].commit_bytes);
  }

  /// Makes the exchange stream wait for the compute stream.
  void join() {
    const std::unique_ptr<Event> now = device_.create_event();
    device_.record(*now, *compute_);
    device_.wait(*comm_, *now);
  }

  void exchange_for(double seconds, Event& done) {
    if (seconds == 0) return;
    join();
    device_.append(*comm_, OpKind::kLocal).seconds = seconds;
    device_.record(done, *comm_);
  }

  void pass(int64_t bytes) {
    // hash_memory() is an op whose only cost is the bytes that it reads.
    if (bytes > 0) device_.ops().hash_memory(*compute_, nullptr, bytes, nullptr);
  }

  void products(const std::vector<int32_t>& ids) {
    const DType transport = plan_.problem().options.transport_dtype;
    const std::vector<BatchShape> shapes = batch_shapes(plan_, ids, rules_);
    scratch_ =
        std::max(scratch_, largest_batch_group_bytes(shapes, methods_, transport, rules_, false));
    for (size_t begin = 0, end = 0; begin < shapes.size(); begin = end) {
      std::vector<OrthogonalizeArgs> batches;
      std::vector<std::vector<NormuonState>> lines;
      for (; end < shapes.size() && shapes[end].batch_group == shapes[begin].batch_group; ++end) {
        const BatchShape& s = shapes[end];
        const NewtonSchulz& settings = methods_[static_cast<size_t>(s.group)];
        const BatchBytes bytes = batch_bytes(s, settings, transport, rules_, false);
        lines.emplace_back(settings.scales_neurons() ? 2 * static_cast<size_t>(s.count) : 0);
        OrthogonalizeArgs& args = batches.emplace_back();
        args.settings = &settings;
        args.method = &s.method;
        args.raw = {device_.allocate(bytes.raw), transport, s.m, s.n, s.ld, s.count, s.m * s.ld};
        args.workspace = device_.allocate(bytes.workspace);
      }
      for (size_t b = 0; b < batches.size(); ++b) batches[b].lines = lines[b];
      Orthogonalization(device_.ops(), *compute_, batches, nullptr).enqueue();
    }
  }

  const Plan& plan_;
  const std::vector<NewtonSchulz>& methods_;
  const MatrixRules& rules_;
  ModelledDevice device_;
  std::vector<DirectChunk> chunks_;
  std::unique_ptr<Stream> compute_, comm_;
  std::vector<std::unique_ptr<Event>> events_;  // two for each chunk: gathered, returned
  int64_t scratch_ = 0;
};

}  // namespace

RankRecording record_direct_step(const Plan& plan, const std::vector<NewtonSchulz>& methods,
                                 const MatrixRules& rules, const MachineProfile& profile,
                                 int32_t rank, std::vector<DirectChunk> chunks, int window,
                                 int64_t last_bytes, int64_t* scratch) {
  return DirectStep(plan, methods, rules, profile, rank, std::move(chunks))
      .run(window, last_bytes, scratch);
}

}  // namespace muonrt

#include "command/bench/bench_ns_scene.hpp"

#include <algorithm>

#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

Provider renamed(Provider provider, const std::string& name) {
  provider.name = name;
  return provider;
}

}  // namespace

double NsJob::flops() const {
  double sum = 0;
  for (const BenchShape& s : shapes) {
    const auto m = static_cast<double>(s.rows), n = static_cast<double>(s.cols);
    sum += static_cast<double>(s.count * methods[0].steps) * (4 * m * m * n + 2 * m * m * m);
  }
  return sum;
}

MatrixBatch NsInputs::of(const BenchShape& s) {
  const int64_t ld = bench_.ops().leading_dimension(s.cols, dtype_);
  MatrixBatch raw{nullptr, dtype_, s.rows, s.cols, ld, s.count, s.rows * ld};
  const int64_t elements = s.count * raw.stride;
  const auto [at, is_new] = made_.try_emplace(s);
  if (is_new) {
    at->second = Buffer(bench_.device(), elements * size_of(dtype_));
    bench_.put_values(at->second.data(), dtype_, elements,
                      [&](int64_t index) { return zeros_ ? 0.0f : bench_value(3, index); });
  }
  raw.data = at->second.data();
  return raw;
}

void NsInputs::keep(const std::vector<BenchShape>& shapes) {
  std::erase_if(made_, [&](const auto& one) {
    return std::find(shapes.begin(), shapes.end(), one.first) == shapes.end();
  });
}

NsScene::NsScene(const Provider& from, const std::string& name, BenchReport& report,
                 const NewtonSchulz& settings, const NsJob& job, NsInputs& inputs)
    : provider(from.name), named(renamed(from, name)), bench(named, report) {
  for (size_t i = 0; i < job.shapes.size(); ++i) {
    const BenchShape& s = job.shapes[i];
    reserve(bench.ops(), settings, job.methods[i], s.rows, s.cols);
    space_bytes.push_back(
        newton_schulz_workspace(bench.ops(), settings, job.methods[i], s.rows, s.cols, s.count));
    batches.push_back(
        {&settings, &job.methods[i], inputs.of(s), bench.take(space_bytes.back()), nullptr});
  }
  findings = bench.put(std::vector<Findings>(1));
}

void NsScene::enqueue() { results = orthogonalize(bench.ops(), bench.stream(), batches, findings); }

void NsScene::replay() {
  Recorder& recorder = *recorder_of(bench.device());
  if (!recording) recording = record_work(recorder, bench.stream(), [this] { enqueue(); });
  recorder.replay(bench.stream(), *recording);
}

void NsScene::clear() {
  for (size_t i = 0; i < batches.size(); ++i)
    bench.ops().fill(bench.stream(), batches[i].workspace, 0xff, space_bytes[i]);
}

std::vector<uint64_t> NsScene::hashes() {
  bench.finish();
  std::vector<uint64_t> out;
  for (const MatrixBatch& o : results)
    out.push_back(bench.hash(o.data, o.count * o.stride * size_of(o.dtype)));
  return out;
}

int64_t NsScene::batches_replayed_otherwise() {
  clear();
  enqueue();
  const std::vector<uint64_t> expected = hashes();
  clear();
  replay();
  const std::vector<uint64_t> got = hashes();
  int64_t out = 0;
  for (size_t i = 0; i < got.size(); ++i) out += got[i] != expected[i];
  return out;
}

}  // namespace muonrt::tool

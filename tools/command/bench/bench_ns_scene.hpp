#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/recorder.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/bench_shapes.hpp"

namespace muonrt::tool {

/// Batches that are orthogonalized in lockstep: one, or those of all shapes.
struct NsJob {
  std::vector<BenchShape> shapes;
  std::vector<Method> methods;  // by shape
  bool gram = false;            // where it pays

  /// In the standard form, no symmetric half saved.
  double flops() const;
};

/// The matrices of all shapes, each made once for all providers and forms; their devices reach the
/// same memory.
class NsInputs {
 public:
  /// @param dtype  of the messages that matrices come from.
  NsInputs(Workbench& bench, DType dtype, bool zeros)
      : bench_(bench), dtype_(dtype), zeros_(zeros) {}
  MatrixBatch of(const BenchShape& s);
  /// Gives back the memory of all others.
  void keep(const std::vector<BenchShape>& shapes);

 private:
  Workbench& bench_;
  DType dtype_;
  bool zeros_;
  std::map<BenchShape, Buffer> made_;
};

/// One provider's run of a job.
struct NsScene {
  std::string provider;
  Provider named;  // in errors
  Workbench bench;
  std::vector<OrthogonalizeArgs> batches;
  std::vector<int64_t> space_bytes;
  Findings* findings = nullptr;
  std::vector<MatrixBatch> results;
  std::unique_ptr<Recording> recording;

  NsScene(const Provider& from, const std::string& name, BenchReport& report,
          const NewtonSchulz& settings, const NsJob& job, NsInputs& inputs);
  void enqueue();
  /// Recorded once, after a first `enqueue`.
  void replay();
  /// NaN into all workspaces, results too.
  void clear();
  /// Batches whose bytes a replay makes otherwise.
  int64_t batches_replayed_otherwise();

 private:
  std::vector<uint64_t> hashes();
};

}  // namespace muonrt::tool

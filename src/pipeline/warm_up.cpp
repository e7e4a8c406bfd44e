
#include "backend/graph_capture.hpp"
#include "backend/local_stream.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

// If the device captures graphs, the second run captures Newton-Schulz. Because a run that collects
// statistics is not captured, only the first run collects them.
void Pipeline::warm_up() {
  context_.warming_up = true;
  context_.ops().fill(*compute_, workspace_.data(), 0, workspace_.bytes());
  const int times = graph_capture_of(*context_.device) ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    StepInputs inputs;
    inputs.local_ok = false;
    inputs.collect_health = health_ && i == 0;
    enqueue(inputs);
    wait();
  }
  context_.warming_up = false;
  clear_times();  // no step has run yet
  resident_peak_ = 0;
}

void Pipeline::connect() {
  context_.comm->connect(*exchange_);
  muonrt::drain(*context_.device, *exchange_, *finished_);
  if (const auto error = context_.comm->error()) throw *error;
}

}  // namespace muonrt

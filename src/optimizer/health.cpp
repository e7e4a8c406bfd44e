#include "optimizer/optimizer.hpp"

namespace muonrt {

bool Optimizer::measures() const {
  return settings_.health_every > 0 && (steps_ + 1) % settings_.health_every == 0;
}

// The step itself is over, whatever happens here.
void Optimizer::take_health(StepReport& report) {
  try {
    current_->health()->finish(params_, !report.skipped);
  } catch (const Error& e) {
    comm_->abort(e.status(), e.message());
    poison_ = Error(e.status(), cat("the step ", report.skipped ? "was skipped" : "is committed",
                                    ", but its health statistics failed: ", e.message()));
    throw *poison_;
  }
  report.health = true;
  health_.step = steps_;
  health_.skipped = report.skipped;
  health_.matrices = current_->health()->matrices();
  health_.difference = current_->health()->difference();
}

}  // namespace muonrt

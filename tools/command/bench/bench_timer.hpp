#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// The operands of the first runs are no longer in a GPU's L2 after this number of bytes.
constexpr int64_t kColdBytes = int64_t{128} << 20;
/// Maximum number of runs in one measurement, and therefore of copies of the operands.
constexpr int64_t kMaxRepeats = 100;
/// Portable loops are slow, so they skip products and Newton-Schulz jobs with more FLOPs than this.
constexpr double kMaxPortableFlops = 2e9;

/// Copies of up to 64 MiB. While the host enqueues the work to be measured, they keep the GPU busy
/// and evict all other data from L2. All devices of one GPU may use one filler, one at a time.
/// Empty on the host.
class Filler {
 public:
  explicit Filler(Workbench& bench);
  bool empty() const { return bytes_ == 0; }
  double copy_ms() const { return copy_ms_; }  // on the host's clock
  void enqueue(Workbench& bench, int64_t copies) const;

 private:
  Buffer from_, to_;
  int64_t bytes_ = 0;
  double copy_ms_ = 0;
};

/// Reads the clock and the power of a GPU every 20 ms on a separate thread.
class ClockSampler {
 public:
  /// @param reads  true if there is a GPU.
  explicit ClockSampler(bool reads);
  ~ClockSampler();
  ClockSampler(const ClockSampler&) = delete;
  ClockSampler& operator=(const ClockSampler&) = delete;
  /// Adds the samples from now on to `samples`. Drops the samples if `samples` is null.
  void read_into(std::vector<GpuClock>* samples);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GpuClock>* samples_ = nullptr;
  bool ends_ = false;
  std::thread thread_;
};

/// The times of one run in milliseconds, on the device's clock.
struct Times {
  std::vector<double> ms;
  std::vector<double> enqueue_ms;  // the host's time to enqueue a run
  int64_t repeats = 1;             // number of runs in each time
  /// Whether the host had enqueued all runs of each measurement before the GPU began. Otherwise a
  /// time may include time of the host. Empty on the host.
  std::optional<bool> ahead;
  std::vector<GpuClock>
      clocks;  // sampled while the times were taken; on a GPU with NVML at least one
};

/// Work to be timed. A measurement on a GPU consists of as many runs as take a third of a
/// millisecond, after a filler that lasts until the host has enqueued all of them. A measurement on
/// the host consists of one run.
class TimedWork {
 public:
  /// @param enqueue   receives the number of the run, for work that alternates between operands.
  /// @param name      the provider's name, for errors.
  /// @param portable  true: the work is slow and is measured at most twice.
  TimedWork(Workbench& bench, const Filler& filler, std::function<void(int64_t run)> enqueue,
            const std::string& name, bool portable = false)
      : bench_(&bench),
        filler_(&filler),
        enqueue_(std::move(enqueue)),
        name_(name),
        portable_(portable) {}

  /// Runs the work without measuring it, only once if it is portable.
  /// @param steady  if a measurement takes less than 20 ms, start each one with 20 ms of runs, but
  ///     at most 5000 runs, so that the GPU has the power and the clocks of this work.
  void warm_up(bool steady);
  void measure(ClockSampler& clocks);
  const Times& times() const { return times_; }

 private:
  struct Taken {
    double ms, enqueue_ms;
    bool ahead;
  };
  Taken take(int64_t copies);
  Taken take_ahead();

  Workbench* bench_;
  const Filler* filler_;
  std::function<void(int64_t run)> enqueue_;
  std::string name_;
  bool portable_;
  int64_t next_ = 0, lead_ = 0, copies_ = 0;
  double run_ms_ = 0;  // of one run, on the host's clock
  Times times_;
  Buffer clock_;
};

/// Returns the milliseconds of one run of work that is repeated on a busy stream. The result is the
/// median of `iters` measurements, each with as many runs as take about a millisecond.
/// @param most  maximum number of runs in a measurement.
double time_repeated(Workbench& bench, int iters, const std::function<void()>& enqueue,
                     int64_t most = 200);

/// Measures several works alternately, each once in a round, so that clocks and temperature are the
/// same for all. The warm-up lasts for at least --warmup rounds and the seconds of --steady, and on
/// a GPU for at least 50 ms.
void time_in_turns(const DeviceArguments& arguments, const Filler& filler,
                   std::vector<TimedWork>& works);

/// The columns min_ms, median_ms, max_ms, repeats, enqueue_ms, ahead, mhz and watts, and their
/// cells.
std::vector<Table::Column> time_columns();
std::vector<Cell> time_cells(const Times& times);

}  // namespace muonrt::tool

#pragma once

#include <cstdio>

#include "muonrt/muonrt.hpp"
#include "train/options.hpp"
#include "train/place.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// Executes `muonrt train` on one rank, with all runs that the options request. Rank 0 then prints
/// the result and writes it to the folder `out`. Collective.
/// @param corpus  its context must equal the context of the preset; ranks that are threads can
///     share it.
/// @param screen  the stream on which rank 0 shows progress. The result is written to standard
///     output.
/// @return  the exit code: 0, or 128 plus the number of the signal that stopped the run, as in a
///     shell.
/// Throws std::runtime_error or muonrt::Error.
int train(Comm& comm, const Options& options, const Corpus& corpus, std::FILE* screen,
          const Place& place = {});

}  // namespace muonrt::train

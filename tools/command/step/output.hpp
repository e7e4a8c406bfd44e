#pragma once

#include <memory>

#include "command/output_folder.hpp"
#include "command/shards.hpp"
#include "command/step/run.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

/// Before the work: the folder --out can be written, and so can the file --health, which is no
/// other one of the command.
std::unique_ptr<OutputFolder> open_output(const StepArguments& arguments);

/// What takes the parameters, in their order: files of the folder and their index, cut by
/// --max-shard-bytes, else as --params is cut.
std::unique_ptr<ShardWriter> make_writer(const StepArguments& arguments, const TensorModel& params);

}  // namespace muonrt::tool

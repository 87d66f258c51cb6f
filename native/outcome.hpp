// How a search ended.
#pragma once

namespace downset {

enum class Outcome {
    kSolved,       // what was asked for is found
    kImpossible,   // proof that there is none
    kLimit,        // a limit came first: nothing is settled
    kOutOfMemory,  // likewise, and no time will settle it
};

}  // namespace downset

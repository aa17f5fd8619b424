#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What the main program says to input that it cannot use: one line per failing rank, and the exit code that tells the
# kind. Runs in an empty folder; $1 is the build folder. Nothing may take long: no case trains.
set -euo pipefail

program=$1/examples/fashion_mnist
checked=0 wrong=0
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DOVETAIL_STORE DOVETAIL_LAUNCHER
export OMP_NUM_THREADS=1

# bytes HEX...: these bytes on stdout.
bytes() {
  local byte
  for byte in "$@"; do printf '%b' "\\x$byte"; done
}

# A folder with a valid data set: 32 training and 32 test images, black, of class 0.
make_data() {
  rm -rf -- "$1"
  mkdir -p -- "$1"
  local part
  for part in train t10k; do
    { bytes 00 00 08 03 00 00 00 20 00 00 00 1c 00 00 00 1c; head -c $((32 * 28 * 28)) /dev/zero; } | gzip -n \
      >"$1/$part-images-idx3-ubyte.gz"
    { bytes 00 00 08 01 00 00 00 20; head -c 32 /dev/zero; } | gzip -n >"$1/$part-labels-idx1-ubyte.gz"
  done
}

# complain NAME TEXT: what does not hold in a case.
complain() {
  wrong=$((wrong + 1))
  printf 'WRONG  %s: %s\n---- stderr\n' "$1" "$2"
  cat stderr
}

# run CODE RANKS NAME [VARIABLE=VALUE...] -- ARGUMENTS... [-- PARTS...]: the program ends with CODE and prints nothing on
# stderr but lines of our own: one for each of RANKS failing ranks (of several, one at least), and the launcher's. Each
# rank's line holds every one of PARTS.
run() {
  local code=$1 ranks=$2 name=$3 before=$wrong got=0 part line lines=0
  shift 3
  local variables=() arguments=() parts=()
  while [[ $# -gt 0 && $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  while [[ $# -gt 0 && $1 != -- ]]; do arguments+=("$1"); shift; done
  if [[ $# -gt 0 ]]; then shift; parts=("$@"); fi

  env "${variables[@]}" timeout --kill-after=5 60 "$program" "${arguments[@]}" >stdout 2>stderr </dev/null || got=$?
  checked=$((checked + 1))
  [[ $got == "$code" ]] || complain "$name" "exit code $got, expected $code"
  while IFS= read -r line; do
    case $line in
      'dovetail: rank '*' ended with exit code '*'; the run of '*)
        [[ $ranks -gt 1 ]] || complain "$name" "a launcher's line: $line"
        ;;
      'dovetail: '*)
        lines=$((lines + 1))
        [[ $ranks -eq 1 || $line == 'dovetail: [rank '* ]] || complain "$name" "no rank named: $line"
        for part in "${parts[@]}"; do [[ $line == *"$part"* ]] || complain "$name" "does not say \"$part\""; done
        ;;
      *) complain "$name" "a line that is not ours: $line" ;;
    esac
  done <stderr
  [[ $lines -ge 1 && $lines -le $ranks ]] || complain "$name" "$lines lines of $ranks ranks"
  ! grep -qE 'Exception raised from|frame #|terminate called' stdout stderr || complain "$name" "a stack trace"
  [[ $wrong == "$before" ]] && printf 'ok     %s -> %s: %s\n' "$name" "$got" "$(head -n 1 stderr)"
  return 0
}

make_data data
common=(--data data --run-directory '')

# ---- the command line
run 2 1 'an unknown strategy' -- "${common[@]}" --strategy zero3 \
  -- "no strategy is called 'zero3'" 'single, ddp, sharded-1, sharded-2, fsdp'
run 2 1 'an unknown precision' -- "${common[@]}" --precision int8 \
  -- "no precision is called 'int8'" bf16-mixed apex-o2 master-fp16
run 2 1 'a refused pair by name' -- "${common[@]}" --strategy fsdp --precision apex-o2 \
  -- 'fsdp with apex-o2: dovetail-E001: ' \
  'With fsdp fit: ' 'with apex-o2 fit: single, ddp.'
run 2 1 'another refused pair' -- "${common[@]}" --strategy sharded-2 --precision apex-o1 \
  -- 'dovetail-E002: ' MasterWeights
run 2 2 'a refused pair on two ranks' -- --ranks 2 "${common[@]}" --strategy fsdp --precision apex-o0 \
  -- 'dovetail-E001: '
for ranks in 0 abc -1 2.5 '' 99999999999; do
  run 2 1 "--ranks '$ranks'" -- --ranks "$ranks" "${common[@]}" \
    -- "--ranks is \"$ranks\", expected a whole number from 1"
done
run 2 1 '--ranks without a number' -- "${common[@]}" --ranks -- '--ranks needs the number of ranks'
run 2 1 'an unknown option' -- "${common[@]}" --worldsize 3 -- --worldsize --help
run 2 1 'an argument that is no option' -- "${common[@]}" train -- train --help
run 2 1 'an option without its value' -- "${common[@]}" --lr -- --lr --help
run 2 1 'a value that is no number' -- "${common[@]}" --batch-size many -- --batch-size many
for size in 0 -4; do run 2 1 "batch size $size" -- "${common[@]}" --batch-size "$size" -- "batch_size is $size" 'at least 1'; done
run 2 1 'negative epochs' -- "${common[@]}" --epochs -1 -- 'max_epochs is -1' 'at least 0'
run 2 1 'accumulation of nothing' -- "${common[@]}" --accumulate 0 -- 'accumulate is 0' 'at least 1'
run 2 1 'a negative clip limit' -- "${common[@]}" --clip -1 -- 'gradient_clip is -1' 'above 0'
run 2 1 'a clip limit that is no number' -- "${common[@]}" --clip nan -- 'gradient_clip is nan' 'above 0'
for rate in nan inf -1; do run 2 1 "learning rate $rate" -- "${common[@]}" --lr "$rate" -- "--lr is $rate" 'from 0 on'; done
run 2 1 'an empty name for the data' -- --data '' --run-directory '' -- 'folder is empty' 'four files'
run 2 1 'a limit of batches below -1' -- "${common[@]}" --limit-batches -2 -- 'limit_train_batches is -2'
run 2 2 'batch size 0 on two ranks' -- --ranks 2 "${common[@]}" --batch-size 0 -- 'batch_size is 0'
run 2 2 'one device and two ranks' -- --ranks 2 "${common[@]}" --strategy single --precision fp32 \
  -- "the strategy 'single' runs on one rank, but 2" ddp

run 2 1 'a device that is none' -- "${common[@]}" --device tpu -- 'the device is "tpu", expected "cpu" or "cuda"'
run 2 2 'a GPU without CUDA' -- --ranks 2 "${common[@]}" --device cuda \
  -- 'the device is "cuda", but this ' 'use "cpu"'

# ---- the environment
run 2 1 'RANK alone' RANK=0 -- "${common[@]}" -- 'the environment sets RANK but not WORLD_SIZE'
run 2 1 'WORLD_SIZE alone' WORLD_SIZE=2 -- "${common[@]}" -- 'the environment sets WORLD_SIZE but not RANK'
run 2 1 'a rank too large' RANK=2 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 -- "${common[@]}" \
  -- RANK 'is 2, expected less than WORLD_SIZE, which is 2'
run 2 1 'a rank that is no number' RANK=first WORLD_SIZE=2 -- "${common[@]}" -- 'RANK is "first"'
run 2 1 'a negative world size' RANK=0 WORLD_SIZE=-1 -- "${common[@]}" -- 'WORLD_SIZE is "-1"'
run 2 1 'an address that nobody knows' RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 \
  MASTER_ADDR=no-such-machine.invalid MASTER_PORT=29512 -- "${common[@]}" --strategy ddp --precision fp32 \
  -- 'cannot resolve MASTER_ADDR "no-such-machine.invalid"'
run 2 1 'a launcher without an address' RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 -- "${common[@]}" \
  -- MASTER_ADDR

# ---- data
pair=(--strategy single --precision fp32 --run-directory '' --epochs 1)
run 5 1 'no data folder' -- "${pair[@]}" --data elsewhere \
  -- 'the data file elsewhere/train-images-idx3-ubyte.gz is missing' dataset-fashion-mnist
run 5 2 'no data folder, two ranks' -- --ranks 2 --strategy ddp --precision fp32 --run-directory '' --data elsewhere \
  -- 'elsewhere/train-images-idx3-ubyte.gz is missing'
run 5 1 'the folder in the variable is missing' DOVETAIL_FASHION_MNIST=nowhere -- "${pair[@]}" \
  -- 'nowhere/train-images-idx3-ubyte.gz is missing'

mkdir -p folders/train-images-idx3-ubyte.gz
run 5 1 'a folder in the place of a data file' -- "${pair[@]}" --data folders -- 'folders/train-images-idx3-ubyte.gz is a folder'

# broken NAME FILE PARTS...: the data set with this file from stdin.
broken() {
  local name=$1 file=$2
  shift 2
  make_data broken
  cat >"broken/$file"
  run 5 1 "$name" -- "${pair[@]}" --data broken -- "broken/$file" "$@"
}
images=train-images-idx3-ubyte.gz labels=train-labels-idx1-ubyte.gz
head -c 60 "data/$images" | broken 'a compressed file that is cut' "$images" 'damaged or cut'
{ head -c 40 "data/$images"; bytes ff ff ff ff ff ff; tail -c +47 "data/$images"; } |
  broken 'a compressed file with other bytes' "$images" 'the data file'
{ bytes 00 00 08 03 00 00 00 20 00 00 00 1c 00 00 00 1c; head -c 1000 /dev/zero; } |
  broken 'fewer images than announced' "$images" 'cannot be used' 'expected 25088 bytes'
{ bytes 00 00 09 03 00 00 00 20 00 00 00 1c 00 00 00 1c; head -c 25088 /dev/zero; } |
  broken 'a wrong magic number' "$images" 'cannot be used'
printf 'GIF89a and so on, for long enough' | broken 'another kind of file' "$images" 'cannot be used'
broken 'an empty file' "$images" 'cannot be used' </dev/null
broken 'labels in the place of images' "$images" 'cannot be used' <"data/$labels"
{ bytes 00 00 08 03 00 00 00 00 00 00 00 1c 00 00 00 1c; } >empty-images
make_data none
cp empty-images "none/$images"
{ bytes 00 00 08 01 00 00 00 00; } >"none/$labels"
run 5 1 'no images at all' -- "${pair[@]}" --data none -- 'empty'
make_data fewer
{ bytes 00 00 08 01 00 00 00 1f; head -c 31 /dev/zero; } >"fewer/$labels"
run 5 1 'fewer labels than images' -- "${pair[@]}" --data fewer -- 'do not belong together' '32 images and 31 labels'
make_data class
{ bytes 00 00 08 01 00 00 00 20 0b; head -c 31 /dev/zero; } >"class/$labels"
run 5 1 'a class that is none' -- "${pair[@]}" --data class -- 'label 0 of class/train is 11'

# ---- the folder of the run
touch a_file
run 2 1 'a file in the place of the run folder' -- --data data --strategy single --precision fp32 --epochs 1 --run-directory a_file \
  -- a_file
run 2 1 'a file above the run folder' -- --data data --strategy single --precision fp32 --epochs 1 --run-directory a_file/run \
  -- a_file/run
run 2 2 'the same on two ranks' -- --ranks 2 --data data --strategy ddp --precision fp32 --epochs 1 --run-directory a_file \
  -- a_file

# ---- and good input still runs: this data, one step
timeout 60 "$program" "${pair[@]}" --data data --limit-batches 1 --limit-validation-batches 1 >stdout 2>stderr </dev/null ||
  complain 'good input' 'it fails'
[[ ! -s stderr ]] || complain 'good input' 'it complains'
printf '%s cases, %s wrong\n' "$checked" "$wrong"
[[ $wrong == 0 ]]

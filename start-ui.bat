@echo off
rem Sets Chorus up on first use, then opens its window: start-ui.bat [options of scripts\train_ui.py]
rem The current folder stays, so that relative paths in the options hold.
rem Delayed expansion stays off: it would eat exclamation marks in paths and options.
setlocal EnableExtensions DisableDelayedExpansion
set "PYTHON_COMMAND="
set "CODE=1"

if defined PYTHON goto :given
call :try py -3
call :try python
if defined PYTHON_COMMAND goto :found
echo Chorus needs Python 3.10 or newer and found none; install one from https://www.python.org and start again. 1>&2
goto :end

:given
call :try "%PYTHON%"
if defined PYTHON_COMMAND goto :found
echo PYTHON="%PYTHON%" is not a working Python 3.10 or newer; set it to one, or unset it to let Chorus look. 1>&2
goto :end

:found
%PYTHON_COMMAND% "%~dp0scripts\setup_env.py" --ui
set "CODE=%ERRORLEVEL%"
if not "%CODE%"=="0" goto :end
"%~dp0.venv\Scripts\python.exe" "%~dp0scripts\train_ui.py" %*
set "CODE=%ERRORLEVEL%"

:end
if "%CODE%"=="0" exit /b 0
rem A double click closes the window with the script: keep the message readable. The command line of this cmd names
rem the script then, and not where a person typed the name. Delayed expansion leaves its quotes and ampersands alone.
setlocal EnableDelayedExpansion
set "LINE=!CMDCMDLINE!"
if not "!LINE:%~nx0=!"=="!LINE!" pause
exit /b %CODE%

:try
rem Keeps the command in PYTHON_COMMAND if it starts a Python that is new enough and none was kept before.
if defined PYTHON_COMMAND exit /b 0
%* -c "import sys; sys.exit(sys.version_info < (3, 10))" >nul 2>&1 <nul
if not errorlevel 1 set PYTHON_COMMAND=%*
exit /b 0
